"""A Kubernetes cluster on one machine, inside namespaces of its own.

The control plane (etcd, the API server, the controller manager, the scheduler, CoreDNS) runs beside the caller,
and each node is a network, mount and process namespace with a real kubelet, kube-proxy, containerd and runc, so
that pods are containers with addresses of their own. The caller must be the first process of namespaces of its own
(tools/cluster/check makes them): nothing is seen from outside then, and all ends with it. Files are under
build/cluster.

It does not enforce NetworkPolicy: bridges of Debian's CNI plugins connect everybody.
"""
import fcntl
import json
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/dev"))
from container_images import run

WORK = ROOT / "build/cluster"
STATE = WORK / "state"  # The last run's.
LOGS = STATE / "logs"
BIN = WORK / "bin"
HELM = ROOT / "build/chart-tools/helm"
HUB = "10.77.0.1"  # The control plane; node N has 10.77.0.1N and gives pods addresses of 10.244.N.0/24.
API = f"https://{HUB}:6443"
POD_NETWORK, SERVICE_NETWORK = "10.244.0.0/16", "10.96.0.0/16"
DOMAIN = "cluster.local"
NAMESPACE = "serving"  # Where kubectl and helm do what they do here.
TOKEN = "tandem"  # Nobody else is in these namespaces.
PAUSE = "tandem.local/pause:1"
KUBECONFIG = STATE / "kubeconfig"
# What a kubelet sets for the whole machine; here it sets files.
KERNEL_SETTINGS = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
                   "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000}


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}; see {LOGS}")
        time.sleep(0.1)
    return value


def kubectl(*arguments, **more):
    return run(BIN / "kubectl", "--kubeconfig", KUBECONFIG, *arguments, **more)


def objects(kind, *arguments):
    return json.loads(kubectl("get", kind, "-o", "json", *arguments))["items"]


def helm(*arguments):
    return run(HELM, "--kubeconfig", KUBECONFIG, *arguments)


def answers(*command):
    return subprocess.run([str(word) for word in command], capture_output=True).returncode == 0


def start(name, *command):
    """A process that ends with this one's namespace."""
    log = open(LOGS / f"{name}.log", "wb")
    return subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def node_name(number):
    return f"node-{number}"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Cluster:
    """Up when made. `images`: an archive of what every node has."""

    def __init__(self, nodes, images):
        self._lock = open(WORK / "lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"a cluster of {WORK} is up already")
        shutil.rmtree(STATE, ignore_errors=True)
        LOGS.mkdir(parents=True)
        self.nodes = range(1, nodes + 1)
        self._make_network()
        self._start_control_plane()
        for number in self.nodes:
            self._start_node(number, images)
        wait_until(lambda: self._ready_nodes() == nodes, 120, f"{nodes} nodes are ready")

    def _make_network(self):
        """A bridge, and a wire from it to each node."""
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "hub", "type", "bridge")
        run("ip", "address", "add", f"{HUB}/24", "dev", "hub")
        run("ip", "link", "set", "hub", "up")
        # Clients beside the control plane reach services by way of the first node.
        run("ip", "route", "add", SERVICE_NETWORK, "via", self._address(1))
        for number in self.nodes:
            name = node_name(number)
            run("ip", "netns", "add", name)
            run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", name, "master", "hub", "up")
            run("ip", "route", "add", self._pods(number), "via", self._address(number))
            inside = ["ip", "-n", name]
            run(*inside, "link", "set", "lo", "up")
            run(*inside, "address", "add", f"{self._address(number)}/24", "dev", "eth0")
            run(*inside, "link", "set", "eth0", "up")
            run(*inside, "route", "add", "default", "via", HUB)
            for other in self.nodes:
                if other != number:
                    run(*inside, "route", "add", self._pods(other), "via", self._address(other))
            run("nsenter", f"--net=/run/netns/{name}", "sh", "-c",
                "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables")
        resolver = write(STATE / "resolv.conf", f"nameserver {HUB}\nsearch default.svc.{DOMAIN} svc.{DOMAIN}\n")
        run("mount", "--bind", resolver, "/etc/resolv.conf")

    @staticmethod
    def _address(number):
        return f"10.77.0.{10 + number}"

    @staticmethod
    def _pods(number):
        return f"10.244.{number}.0/24"

    def _start_control_plane(self):
        keys = STATE / "keys"
        keys.mkdir()
        run("openssl", "genrsa", "-out", keys / "accounts.key", "2048")
        run("openssl", "rsa", "-in", keys / "accounts.key", "-pubout", "-out", keys / "accounts.pub")
        tokens = write(keys / "tokens", f'{TOKEN},tandem,tandem,"system:masters"\n')
        write(KUBECONFIG, json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "tandem",
            "clusters": [{"name": "tandem", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "tandem", "user": {"token": TOKEN}}],
            "contexts": [{"name": "tandem", "context": {"cluster": "tandem", "user": "tandem",
                                                        "namespace": NAMESPACE}}]}))
        KUBECONFIG.chmod(0o600)
        start("etcd", "etcd", "--data-dir", STATE / "etcd", "--unsafe-no-fsync")
        start("kube-apiserver", BIN / "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
                f"--bind-address={HUB}", f"--service-cluster-ip-range={SERVICE_NETWORK}", f"--cert-dir={keys}",
                "--kubelet-preferred-address-types=InternalIP", f"--token-auth-file={tokens}", "--authorization-mode=RBAC", "--allow-privileged=true",
                f"--service-account-issuer={API}", f"--service-account-key-file={keys}/accounts.pub",
                f"--service-account-signing-key-file={keys}/accounts.key")
        wait_until(lambda: answers(BIN / "kubectl", "--kubeconfig", KUBECONFIG, "get", "--raw", "/readyz"), 120,
                   "the API server is ready")
        start("kube-controller-manager", BIN / "kube-controller-manager", f"--kubeconfig={KUBECONFIG}",
                "--leader-elect=false", f"--service-account-private-key-file={keys}/accounts.key",
                f"--cert-dir={keys}")
        start("kube-scheduler", BIN / "kube-scheduler", f"--kubeconfig={KUBECONFIG}", "--leader-elect=false",
                f"--cert-dir={keys}")
        names = write(STATE / "Corefile", f""".:53 {{
    bind {HUB}
    errors
    kubernetes {DOMAIN} {{
        kubeconfig {KUBECONFIG}
        ttl 5
    }}
}}
""")
        start("coredns", BIN / "coredns", "-conf", names)

    def _start_node(self, number, images):
        name, folder = node_name(number), STATE / node_name(number)
        for part in ("lib", "log", "cni"):
            (folder / part).mkdir(parents=True)
        write(folder / "cni/bridge.conflist", json.dumps({
            "cniVersion": "0.4.0", "name": "pods", "plugins": [
                {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True,
                 "ipam": {"type": "host-local", "ranges": [[{"subnet": self._pods(number)}]],
                          "routes": [{"dst": "0.0.0.0/0"}]}}]}))
        containerd = write(folder / "containerd.toml", f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{folder}/cni"
""")
        kubelet = write(folder / "kubelet.yaml", json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False, "enforceNodeAllocatable": [],
            "clusterDNS": [HUB], "clusterDomain": DOMAIN, "resolvConf": str(STATE / "resolv.conf"),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
            "imageGCHighThresholdPercent": 100, "failSwapOn": False,
            "syncFrequency": "5s",  # So that pods see a changed Secret soon.
            "volumePluginDir": "/var/lib/kubelet/volume-plugins"}))
        proxy = write(folder / "proxy.yaml", json.dumps({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "iptables",
            "clientConnection": {"kubeconfig": str(KUBECONFIG)}, "hostnameOverride": name,
            "clusterCIDR": POD_NETWORK, "conntrack": {"maxPerCore": 0, "min": 0}}))
        settings = [f"mount --bind {write(folder / 'kernel' / setting, str(value))} /proc/sys/{setting}"
                    for setting, value in KERNEL_SETTINGS.items()]
        script = write(folder / "start", "\n".join([
            "set -e",
            "mount -t tmpfs tmpfs /run",
            f"mount --bind {folder}/lib /var/lib",
            f"mount --bind {folder}/log /var/log",
            *settings,
            f"containerd --config {containerd} >{LOGS}/{name}-containerd.log 2>&1 &",
            f"{BIN}/kube-proxy --config={proxy} >{LOGS}/{name}-kube-proxy.log 2>&1 &",
            "while ! ctr version >/dev/null 2>&1; do sleep 0.1; done",
            f"ctr --namespace k8s.io images import {images}",
            f"exec {BIN}/kubelet --config={kubelet} --kubeconfig={KUBECONFIG} --hostname-override={name} "
            f"--node-ip={self._address(number)}"]) + "\n")
        start(name, "nsenter", f"--net=/run/netns/{name}", "unshare", "--pid", "--mount", "--fork", "--kill-child",
                "--mount-proc", "sh", script)

    @staticmethod
    def _ready_nodes():
        return sum(condition["type"] == "Ready" and condition["status"] == "True"
                   for node in objects("nodes") for condition in node["status"].get("conditions", []))
