"""What the chart promises, shown in a cluster. Run by tools/cluster/check, in namespaces of its own."""
import contextlib
import json
import os
import pathlib
import random
import signal
import ssl
import socket
import subprocess
import sys
import threading
import time

import cluster
import load
from cluster import NAMESPACE, ROOT, STATE, helm, kubectl, objects, wait_until

sys.path.insert(0, str(ROOT / "tests/e2e"))
from certificates import Authority

CHART = ROOT / "deploy/helm/tandem"
MODEL = ROOT / "tests/data/demo_model"
BIN = ROOT / "build/release/bin"
SERVICE = f"tandem-router.{NAMESPACE}.svc.{cluster.DOMAIN}"
WORKLOADS = ["tandem-router", "tandem-prefill", "tandem-decode"]
SMALL = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}
VALUES = {
    "model": {"existingClaim": "model"},
    "router": {"resources": SMALL, "config": {"disaggregate": "always"}},
    "workers": {"replicas": 2, "resources": SMALL, "config": {"threads": 1}},
    "pools": {"prefill": {"role": "prefill"}, "decode": {"role": "decode"}},
    "apiKeys": {"secret": "keys"},
    "fleetSecret": {"secret": "fleet-secret"},
    "tls": {"clients": {"secret": "clients-tls", "privateCa": True}, "fleet": {"secret": "fleet-tls"}},
    "test": {"apiKeySecret": "keys"},
}
# Without TLS and keys, of a model that an init container copies, KV blocks over UCX.
PLAIN_VALUES = {
    "model": {"copy": {"image": "tandem.local/model:1", "path": "/model"}},
    "router": {"replicas": 1, "resources": SMALL, "config": {"disaggregate": "always"}},
    "workers": {"resources": SMALL, "transport": "ucx", "ucxDevices": "eth0", "config": {"threads": 1}},
    "pools": {"prefill": {"role": "prefill"}, "decode": {"role": "decode"}},
    "insecure": {"router": True, "workers": True},
}
CLAIM = [
    {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "model"},
     "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"], "storageClassName": "",
              "hostPath": {"path": str(MODEL), "type": "Directory"}}},
    {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "model"},
     "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": "model",
              "resources": {"requests": {"storage": "1Gi"}}}},
]
counts = {True: 0, False: 0}


def tell(what, ok, why=""):
    counts[bool(ok)] += 1
    print(f"{'PASSED' if ok else 'FAILED'} {what}" + ("" if ok else f" - {why}"), flush=True)


def apply(*described):
    kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": described}))


def secret(name, files, kind="Opaque"):
    """Made, or changed."""
    apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": files})


class Credentials:
    """Certificates, keys and the fleet's secret, as Secrets."""

    def __init__(self):
        self.authority = Authority(STATE / "keys")
        self.key = self.new_key()
        self.new_certificates()
        secret("fleet-secret", {"secret": random.randbytes(32).hex()})

    def new_key(self):
        """The only one that clients may have from now on."""
        words = dict(line.split(None, 1) for line in cluster.run(BIN / "tandem", "key", "team").splitlines())
        secret("keys", {"keys": words["line:"] + "\n", "key": words["key:"]})
        return words["key:"]

    def new_certificates(self):
        clients = ["tandem-router", f"tandem-router.{NAMESPACE}.svc", SERVICE]
        for name, hosts in {"clients": clients, "fleet": [f"tandem-workers.{NAMESPACE}.svc"]}.items():
            path = self.authority.issue(name, *hosts)
            secret(f"{name}-tls", {"tls.crt": path.with_suffix(".pem").read_text(),
                                   "tls.key": path.with_suffix(".key").read_text(),
                                   "ca.crt": self.authority.pem().decode()}, "kubernetes.io/tls")

    def target(self):
        return load.Target(SERVICE, self.key, str(STATE / "keys/clients.ca"))


class Endings:
    """How containers of the release ended: by pod, the exit code."""

    def __init__(self):
        self._codes, self._lock = {}, threading.Lock()
        self._watch = subprocess.Popen(
            [cluster.BIN / "kubectl", "--kubeconfig", cluster.KUBECONFIG, "get", "pods", "--watch", "-o", "json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        text, decoder = "", json.JSONDecoder()
        for line in self._watch.stdout:
            text += line
            if line.startswith("}"):  # Objects are indented.
                pod, text = decoder.decode(text), ""
                for container in pod["status"].get("containerStatuses", []):
                    for state in (container["state"], container["lastState"]):
                        if "terminated" in state:
                            with self._lock:
                                self._codes[pod["metadata"]["name"]] = state["terminated"]["exitCode"]

    def codes(self):
        with self._lock:
            return dict(self._codes)


def install(name, values, command="install", *flags):
    path = cluster.write(STATE / f"{name}.yaml", json.dumps(values))
    return helm(command, name, CHART, "-f", path, "--wait", "--timeout", "3m", *flags)


def check_helm_test(release):
    tested = helm("test", release, "--logs")
    tell(f"helm test of {release}", "Phase:          Succeeded" in tested and "0 rejected, 0 failed" in tested, tested)


def pods(*selector):
    return [pod for pod in objects("pods", "-l", ",".join(("app.kubernetes.io/instance=tandem", *selector)))
            if pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") != "test"]


def settle():
    """Until every workload has the pods that it wants, all ready, and none is going."""
    for workload in WORKLOADS:
        kubectl("rollout", "status", f"deployment/{workload}", "--timeout=180s")
    wait_until(lambda: len(pods()) == 6, 60, "pods that were to go have gone")


def reference_answers(seed):
    """By prompt, what `tandem serve` of the same build says."""
    draw = random.Random(seed)
    prompts = [tuple(draw.randrange(5, 250) for _ in range(draw.choice([3, 40, 150]))) for _ in range(8)]
    serve = subprocess.Popen([BIN / "tandem", "serve", MODEL, "--hybrid=1", "--http=127.0.0.1:8000"],
                             stdout=open(cluster.LOGS / "serve.log", "wb"), stderr=subprocess.STDOUT)
    client = load.openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
    def ready():
        with contextlib.suppress(load.openai.OpenAIError):
            return client.models.list()
    wait_until(ready, 60, "tandem serve is ready")
    answers = {prompt: load.ask(client, list(prompt), streamed=True) for prompt in prompts}
    serve.send_signal(signal.SIGTERM)
    serve.wait(60)
    return answers


def served_certificate():
    context = ssl.create_default_context(cafile=STATE / "keys/clients.ca")
    with socket.create_connection((SERVICE, 8000), timeout=5) as plain, \
            context.wrap_socket(plain, server_hostname=SERVICE) as wrapped:
        return wrapped.getpeercert()["serialNumber"]


def check_disturbances(running, credentials):
    for pod in pods():
        name = pod["metadata"]["name"]
        with running.phase(tell, f"pod {name} is deleted"):
            kubectl("delete", "pod", name)
            settle()
    for role in ("prefill", "decode"):
        name = pods(f"tandem/role={role}")[0]["metadata"]["name"]
        killed.add(name)
        with running.phase(tell, f"pod {name} is killed"):
            kubectl("delete", "pod", name, "--grace-period=0", "--force")
            settle()
    for workload in WORKLOADS:
        with running.phase(tell, f"{workload} is restarted pod by pod"):
            kubectl("rollout", "restart", f"deployment/{workload}")
            settle()
    for node in objects("nodes"):
        name = node["metadata"]["name"]
        with running.phase(tell, f"{name} is drained"):
            kubectl("drain", name, "--delete-emptydir-data", "--timeout=180s")
            left = [pod["metadata"]["name"] for pod in pods() if pod["spec"]["nodeName"] == name]
            settle()
            kubectl("uncordon", name)
        tell(f"nothing is left on {name}", not left, left)
    with running.phase(tell, "an upgrade to another image and configuration"):
        install("tandem", VALUES | {"image": {"tag": "next"}, "workers": VALUES["workers"] | {
            "config": {"threads": 1, "max-num-seqs": 32}}}, "upgrade")
        settle()
        images = {pod["spec"]["containers"][0]["image"] for pod in pods()}
    tell("all pods have the other image", images == {"tandem-router:next", "tandem-worker:next"}, images)
    with running.phase(tell, "a rollback"):
        helm("rollback", "tandem", "1", "--wait", "--timeout", "3m")
        settle()
        images = {pod["spec"]["containers"][0]["image"] for pod in pods()}
    tell("all pods have the first image", images == {"tandem-router:0.1.0", "tandem-worker:0.1.0"}, images)
    names, before = {pod["metadata"]["name"] for pod in pods()}, served_certificate()
    with running.phase(tell, "new certificates on every link"):
        credentials.new_certificates()
        # Each connection goes to one of the routers.
        wait_until(lambda: all(served_certificate() != before for _ in range(10)), 120, "routers show the new certificate")
    tell("for which no pod was replaced", names == {pod["metadata"]["name"] for pod in pods()})


def check_keys(credentials):
    old, credentials.key = credentials.target(), credentials.new_key()
    def known(target):
        try:
            return bool(target.client().models.list())
        except load.openai.AuthenticationError:
            return False
    wait_until(lambda: all(known(credentials.target()) for _ in range(10)), 120, "routers know the new key")
    tell("the old key is refused once it is replaced", not any(known(old) for _ in range(10)))


def check_release(seed):
    kubectl("create", "namespace", NAMESPACE)
    # The API server refuses pods that are not confined.
    kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    credentials = Credentials()
    apply(*CLAIM)
    endings = Endings()
    expected = reference_answers(seed)
    install("tandem", VALUES)
    tell("helm installs, under the pod security standard \"restricted\"", True)
    nodes = {pod["spec"]["nodeName"] for pod in pods()}
    tell("pods are spread over the nodes", len(nodes) == 3, nodes)
    check_helm_test("tandem")
    client = credentials.target().client()
    said = {prompt: load.ask(client, list(prompt), streamed=False) for prompt in expected}
    tell("the service says what tandem serve says", said == expected)
    running = load.Load(credentials.target(), expected, cluster.BIN / "ghz", ROOT / "proto", seed)
    try:
        check_disturbances(running, credentials)
    finally:
        running.end()
    tell(f"{running.finished} answers over HTTP and {running.over_grpc} over gRPC, the same tokens, none failed",
         not running.failures, running.failures[:5])
    check_keys(credentials)
    last = [pod["metadata"]["name"] for pod in pods()]
    helm("uninstall", "tandem", "--wait")
    wait_until(lambda: not pods(), 60, "all pods are gone")
    left = kubectl("get", "all,configmap,networkpolicy,poddisruptionbudget,secret", "-o", "name",
                   "-l", "app.kubernetes.io/instance=tandem").split()
    tell("helm uninstall leaves nothing but the test's pod", left in ([], ["pod/tandem-test"]), left)
    with contextlib.suppress(TimeoutError):  # The watch tells it a little later.
        wait_until(lambda: set(last) <= set(endings.codes()), 30, "the last pods' endings are known")
    ended = {name: code for name, code in endings.codes().items() if name not in killed}
    tell(f"{len(ended)} containers were asked to end, and did by themselves",
         set(last) <= set(ended) and not any(ended.values()), {name: code for name, code in ended.items() if code})


def check_plain_release():
    install("plain", PLAIN_VALUES)
    tell("helm installs a release that copies its model, blocks over UCX", True)
    check_helm_test("plain")
    helm("uninstall", "plain", "--wait")


killed = set()


def main(*flags):
    if flags not in ((), ("--hold",)):
        sys.exit("usage: check [--hold]")
    # The first process of a namespace has no default actions of signals.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    cluster.Cluster(3, cluster.WORK / "images.tar")
    tell("a cluster of 3 nodes is up", True)
    check_release(seed)
    check_plain_release()
    print(f"tools/cluster: {counts[True]} passed, {counts[False]} failed", flush=True)
    if flags:
        print(f"nsenter --target PID --net --mount --pid, PID of kube-apiserver; kubectl --kubeconfig {cluster.KUBECONFIG}",
              flush=True)
        signal.pause()
    sys.exit(1 if counts[False] else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
