"""What must hold of everything that the chart renders, whatever its values.

Each check is a generator of problems, named by its function; it gets a Release.
"""
import json
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMESPACE = "serving"
APP_VERSION = yaml.safe_load((ROOT / "deploy/helm/tandem/Chart.yaml").read_text())["appVersion"]
METRIC = re.compile(r"\b(?:tandem|vllm)[_:][a-z0-9_:]+")
# Seconds until whoever has started a program that drains may kill it: what `tandem serve` waits, too.
DRAIN_MARGIN = int(re.search(r"kDrainMarginSeconds = (\d+);", (ROOT / "services/server/drain_time.h").read_text())[1])
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
RULES = sorted((ROOT / "deploy/prometheus").glob("*.yaml"))


def flags_of(program):
    """Flags by name, with what docs/flags.md says of their values."""
    section = (ROOT / "docs/flags.md").read_text().split(f"## {program}\n", 1)[1].split("\n## ")[0]
    return {name: kind for name, kind in re.findall(r"^  --([a-z0-9-]+)(?: (\S+))?$", section, re.M)}


def matches(selector, labels):
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


class Workload:
    """A Deployment, or the pod of a test, with its one container."""

    def __init__(self, kind, body):
        self.kind, self.body, self.name = kind, body, body["metadata"]["name"]
        template = body if kind == "Pod" else body["spec"]["template"]
        self.labels = template["metadata"]["labels"]
        self.annotations = template["metadata"].get("annotations", {})
        self.pod = template["spec"]
        self.container, = self.pod["containers"]
        self.program = self.container["command"][0].rsplit("/", 1)[1]
        self.ports = {port["name"]: port["containerPort"] for port in self.container.get("ports", [])}
        self.flags = {}
        for argument in self.container["args"]:
            name, _, value = argument.removeprefix("--").partition("=")
            self.flags.setdefault(name, []).append(value)

    def __str__(self):
        return self.name

    def flag(self, name):
        return self.flags.get(name, [None])[0]

    @property
    def is_router(self):
        return self.program == "tandem-router"


class Release:
    """All objects of one rendering, and the values that it was made of."""

    def __init__(self, text, values):
        self.values = values
        self.listen_address = self.value("listenAddress", "0.0.0.0")
        self.objects = [body for body in yaml.safe_load_all(text) if body]
        self.workloads = [Workload("Deployment", body) for body in self.of("Deployment")]
        self.tests = [Workload("Pod", body) for body in self.of("Pod")]
        self.routers = [workload for workload in self.workloads if workload.is_router]
        self.workers = [workload for workload in self.workloads if not workload.is_router]

    @property
    def clients_name(self):
        """What the certificate that clients see is for."""
        return self.value("tls.clients.name", f"{self.routers[0]}.{NAMESPACE}.svc")

    def of(self, kind):
        return [body for body in self.objects if body["kind"] == kind]

    def value(self, path, default=None):
        here = self.values
        for key in path.split("."):
            if not isinstance(here, dict) or key not in here:
                return default
            here = here[key]
        return here

    def secret_of(self, workload, path):
        """The Secret in which a file is."""
        folder = path.rsplit("/", 1)[0]
        name, = [mount["name"] for mount in workload.container["volumeMounts"] if mount["mountPath"] == folder]
        volume, = [each for each in workload.pod["volumes"] if each["name"] == name]
        return volume["secret"]["secretName"]

    def pool(self, worker):
        common, own = self.value("workers", {}), self.values["pools"][worker.labels["tandem/pool"]]
        return {**common, **own, "config": {**common.get("config", {}), **own.get("config", {})}}


def names_are_legal(release):
    """Of services, and with what is appended for a pod, so that queries find them by their beginnings."""
    for body in release.objects:
        name = body["metadata"]["name"]
        appended = {"Deployment": "-6d4cf56db6-x7k2p"}.get(body["kind"], "")
        if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name + appended) > 63:
            yield f"{body['kind']} {name}"


def pods_are_confined(release):
    for workload in release.workloads + release.tests:
        pod, security = workload.pod, workload.pod["securityContext"]
        wrong = [key for key, want in {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532,
                                       "seccompProfile": {"type": "RuntimeDefault"}}.items()
                 if security.get(key) != want]
        wrong += [key for key in ("automountServiceAccountToken", "enableServiceLinks") if pod.get(key) is not False]
        wrong += [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
        for container in pod["containers"] + pod.get("initContainers", []):
            own = container.get("securityContext", {})
            wrong += [f"{container['name']}: {key}" for key, want in {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]}}.items() if own.get(key) != want]
            wrong += [f"{container['name']}: {key}" for key in ("privileged", "runAsUser", "seccompProfile") if key in own]
        if wrong:
            yield f"{workload}: {wrong}"


def containers_have_limits(release):
    for workload in release.workloads + release.tests:
        for container in workload.pod["containers"] + workload.pod.get("initContainers", []):
            if "memory" not in container.get("resources", {}).get("limits", {}):
                yield f"{workload}: {container['name']} has no limit of memory"
            if "cpu" not in container.get("resources", {}).get("requests", {}):
                yield f"{workload}: {container['name']} requests no cpu"


def probes_ask_the_admin_port(release):
    for workload in release.workloads:
        tls = workload.flag("tls-cert" if workload.is_router else "fleet-tls-cert") is not None
        if workload.flag("admin") != f"{release.listen_address}:{workload.ports.get('admin')}":
            yield f"{workload}: --admin is {workload.flag('admin')}, the port admin is {workload.ports.get('admin')}"
        for probe, path in (("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", "/ready")):
            if workload.container.get(probe, {}).get("httpGet") != {"path": path, "port": "admin",
                                                                    "scheme": "HTTPS" if tls else "HTTP"}:
                yield f"{workload}: {probe} is {workload.container.get(probe)}"
        startup, liveness = workload.container["startupProbe"], workload.container["livenessProbe"]
        allowed = startup["periodSeconds"] * startup["failureThreshold"]
        wanted = 60 if workload.is_router else release.pool(workload).get("startupSeconds", 1800)
        if allowed < wanted:
            yield f"{workload}: may take {allowed} s to start, want {wanted}"
        # A router is ready once a worker is.
        slowest = max([wanted] + [release.pool(worker).get("startupSeconds", 1800) for worker in release.workers
                                  if workload.is_router])
        if workload.body["spec"].get("progressDeadlineSeconds", 600) <= slowest:
            yield f"{workload}: a rollout fails before a pod may have started"
        # A worker is hung after thirty times 2 s without progress: then soon, but not for one answer that is late.
        if not 20 <= liveness["periodSeconds"] * liveness["failureThreshold"] <= 60:
            yield f"{workload}: livenessProbe {liveness}"


def grace_fits_the_drain(release):
    for workload in release.workloads:
        hook = workload.container.get("lifecycle", {}).get("preStop", {})
        if set(hook) - {"sleep"}:
            yield f"{workload}: preStop is {hook}, but the image has no shell"
        sleep = hook.get("sleep", {}).get("seconds", 0)
        if workload.is_router and sleep != release.value("router.preStopSleepSeconds", 5):
            yield f"{workload}: preStop sleeps for {sleep} s"
        drain = workload.flag("drain-seconds")
        if drain is None:
            yield f"{workload}: nobody says for how long it may drain"
            continue
        need = sleep + int(drain) + DRAIN_MARGIN
        grace = workload.pod.get("terminationGracePeriodSeconds", 30)
        if not need <= grace <= need + 10:
            yield f"{workload}: {grace} s of grace, want {need} or a little more: it sleeps for {sleep} and drains for {drain}"


def rollouts_suit_the_role(release):
    for workload in release.workloads:
        kept = {"maxSurge": 1, "maxUnavailable": 0}
        if not workload.is_router:
            if workload.labels.get("tandem/role") != workload.flag("role"):
                yield f"{workload}: label and flag name other roles"
            if workload.flag("role") == "prefill":
                kept = {"maxSurge": 0, "maxUnavailable": 1}
            kept = release.pool(workload).get("rollout") or kept
        if workload.body["spec"]["strategy"].get("rollingUpdate") != kept:
            yield f"{workload}: {workload.body['spec']['strategy']}, want {kept}"


def flags_are_known(release):
    for workload in release.workloads + release.tests:
        program = workload.program
        image = "/".join([*filter(None, [release.value("image.repository")]),
                          f"{'tandem-router' if program == 'tandem' else program}:{release.value('image.tag', APP_VERSION)}"])
        own = release.pool(workload).get("image") if program == "tandem-worker" else release.value("router.image")
        image = own or image
        if workload.container["image"] != image:
            yield f"{workload}: {workload.container['image']}, want {image}"
        known = flags_of("tandem bench" if program == "tandem" else program)
        for name, given in workload.flags.items():
            if len(given) > 1:
                yield f"{workload}: --{name} is there {len(given)} times"
            if name not in known:
                yield f"{workload}: no flag --{name}"
            choices = known.get(name, "").split("|")
            if len(choices) > 1 and choices[0].islower() and given[0] not in choices:
                yield f"{workload}: --{name}={given[0]} is none of {choices}"
            if name in known and (known[name] == "") != (given[0] == ""):
                yield f"{workload}: --{name}={given[0]}"
        named = {entry["name"]: entry for entry in workload.container.get("env", [])}
        for variable in named:
            flag = variable.removeprefix("TANDEM_").lower().replace("_", "-")
            if variable.startswith("TANDEM_") and flag not in known and variable != "TANDEM_API_KEY":
                yield f"{workload}: {variable} is no flag of {program}"
        if program != "tandem" and named.get("TANDEM_NAME", {}).get("valueFrom") != {
                "fieldRef": {"fieldPath": "metadata.name"}}:
            yield f"{workload}: is not named like its pod"
        if program != "tandem" and workload.flag("served-model-name") != release.value("model.servedName", "default"):
            yield f"{workload}: serves {workload.flag('served-model-name')}"


def fleets_agree_on_flags(release):
    for name in ("served-model-name", "fleet-secret-file", "fleet-tls-cert", "fleet-tls-key", "fleet-tls-ca",
                 "fleet-tls-name", "model"):
        said = {workload.flag(name) for workload in release.workloads}
        if len(said) > 1:
            yield f"--{name} is {said}"
    named, service = release.workers[0].flag("fleet-tls-name"), release.routers[0].flag("workers-dns").split(":")[0]
    if named and named != release.value("tls.fleet.name", f"{service}.{NAMESPACE}.svc"):
        yield f"--fleet-tls-name is {named}"
    for wanted, flag in (("fleetSecret.secret", "fleet-secret-file"), ("tls.fleet.secret", "fleet-tls-cert"),
                         ("tls.fleet.issuer", "fleet-tls-cert")):
        if release.value(wanted) and release.workers[0].flag(flag) is None:
            yield f"{wanted} is given, --{flag} is not"
    router, = release.routers
    for wanted, flag in (("apiKeys.secret", "api-key-file"), ("tls.clients.secret", "tls-cert"),
                         ("tls.clients.issuer", "tls-key"), ("tls.clients.clientCaSecret", "tls-client-ca"),
                         ("tls.fleet.caSecret", "fleet-tls-ca")):
        if release.value(wanted) and router.flag(flag) is None:
            yield f"{wanted} is given, --{flag} is not"


def files_are_mounted(release):
    known = {body["metadata"]["name"]: body["data"] for body in release.of("ConfigMap")}
    for workload in release.workloads:
        pod, container = workload.pod, workload.container
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        used = {mount["name"] for each in pod["containers"] + pod.get("initContainers", [])
                for mount in each.get("volumeMounts", [])}
        if used != set(volumes):
            yield f"{workload}: volumes {sorted(volumes)}, mounted are {sorted(used)}"
        for path, mount in mounts.items():
            if mount.get("readOnly", False) != (path not in ("/cache", "/dev/shm")):
                yield f"{workload}: {path} is {'' if mount.get('readOnly') else 'not '}read-only"
        # What is made there must be the worker's own, and a volume's root is not.
        if not workload.is_router and "/cache" != (workload.flag("cache-dir") or "").rsplit("/", 1)[0]:
            yield f"{workload}: --cache-dir={workload.flag('cache-dir')}"
        for name, (value, *_) in workload.flags.items():
            if not value.startswith("/"):
                continue
            folder = value if value in mounts else value.rsplit("/", 1)[0]
            if folder not in mounts:
                yield f"{workload}: nothing is mounted at --{name}={value}"
                continue
            volume, file = volumes[mounts[folder]["name"]], value.rsplit("/", 1)[1]
            if "configMap" in volume and file not in known.get(volume["configMap"]["name"], {}):
                yield f"{workload}: no {file} in {volume['configMap']}"
        for volume in volumes.values():
            if "secret" in volume and volume["secret"].get("defaultMode") != 0o440:
                yield f"{workload}: {volume['name']} may be read by others"


def secrets_are_those_named(release):
    router, = release.routers
    wanted = {"fleet-secret-file": (release.value("fleetSecret.secret"), release.value("fleetSecret.key", "secret")),
              "api-key-file": (release.value("apiKeys.secret"), release.value("apiKeys.key", "keys")),
              "tls-client-ca": (release.value("tls.clients.clientCaSecret"), "ca.crt"),
              "tls-cert": (release.value("tls.clients.secret"), "tls.crt"),
              "tls-key": (release.value("tls.clients.secret"), "tls.key"),
              "fleet-tls-cert": (release.value("tls.fleet.secret"), "tls.crt"),
              "fleet-tls-key": (release.value("tls.fleet.secret"), "tls.key"),
              "fleet-tls-ca": (release.value("tls.fleet.caSecret", release.value("tls.fleet.secret")), "ca.crt")}
    for workload in release.workloads:
        mounts = {mount["mountPath"]: mount["name"] for mount in workload.container["volumeMounts"]}
        for flag, (secret, key) in wanted.items():
            if (path := workload.flag(flag)) is None:
                continue
            volume, = [each for each in workload.pod["volumes"] if each["name"] == mounts[path.rsplit("/", 1)[0]]]
            if path.rsplit("/", 1)[1] != key or secret and volume["secret"]["secretName"] != secret:
                yield f"{workload}: --{flag}={path} of {volume}, want {key} of {secret}"
        names = {volume.get("secret", {}).get("secretName") for volume in workload.pod["volumes"]}
        clients = {release.value("apiKeys.secret"), release.value("tls.clients.secret")} - {None}
        if workload is not router and names & clients:
            yield f"{workload}: has {names & clients}, which are the router's"


def sizes_come_from_the_limit(release):
    units = {"": 1, "M": 10**6, "G": 10**9, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

    def bytes_of(quantity):
        number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", quantity).groups()
        return int(float(number) * units[unit])

    for worker in release.workers:
        pool, limit = release.pool(worker), bytes_of(worker.container["resources"]["limits"]["memory"])
        if worker.container["resources"] != pool["resources"]:
            yield f"{worker}: resources are {worker.container['resources']}"
        percent = pool.get("kvMemoryPercent", 0)
        want = str(limit * percent // 100) if percent else None
        if worker.flag("kv-memory") != want:
            yield f"{worker}: --kv-memory={worker.flag('kv-memory')}, want {want}"
        shm = [volume["emptyDir"] for volume in worker.pod["volumes"] if volume["name"] == "shm"]
        ucx = worker.flag("transport") == "ucx"
        if bool(shm) != ucx:
            yield f"{worker}: transport {worker.flag('transport')}, /dev/shm {shm}"
        elif ucx and (shm[0]["medium"] != "Memory" or not int(want or 0) < bytes_of(shm[0]["sizeLimit"]) <= limit):
            yield f"{worker}: {shm} beside a KV pool of {want} and a limit of {limit} bytes"
        elif ucx and (worker.flag("ucx-devices") != pool["ucxDevices"] or not pool["ucxDevices"]):
            yield f"{worker}: --ucx-devices={worker.flag('ucx-devices')}"


def selectors_choose_their_own(release):
    for workload in release.workloads:
        chosen = workload.body["spec"]["selector"]
        if [str(other) for other in release.workloads + release.tests if matches(chosen, other.labels)] != [str(workload)]:
            yield f"{workload}: its selector chooses others, or not itself"
        if any("chart" in key or "version" in key for key in chosen["matchLabels"]):
            yield f"{workload}: its selector changes with the chart"
        for spread in workload.pod.get("topologySpreadConstraints", []):
            if not matches(spread["labelSelector"], workload.labels) or spread["labelSelector"] != chosen:
                yield f"{workload}: is spread by {spread['labelSelector']}"
        pool = release.value("router", {}) if workload.is_router else release.pool(workload)
        wanted = pool.get("topologySpread", [{"topologyKey": "kubernetes.io/hostname", "maxSkew": 1,
                                              "whenUnsatisfiable": "ScheduleAnyway"}])
        told = [{key: spread[key] for key in ("topologyKey", "maxSkew", "whenUnsatisfiable")}
                for spread in workload.pod.get("topologySpreadConstraints", [])]
        if told != wanted:
            yield f"{workload}: is spread by {told}, want {wanted}"
        for key in ("nodeSelector", "tolerations", "affinity", "runtimeClassName", "priorityClassName"):
            if (workload.pod.get(key) or None) != (pool.get(key) or None):
                yield f"{workload}: {key} is {workload.pod.get(key)}, want {pool.get(key)}"
        budgets = [body["spec"] for body in release.of("PodDisruptionBudget")
                   if matches(body["spec"]["selector"], workload.labels)]
        if [budget["maxUnavailable"] for budget in budgets] != [
                value for value in [pool.get("maxUnavailable", 1)] if value != ""]:
            yield f"{workload}: budgets {budgets}"
        if any(budget["selector"] != chosen for budget in budgets):
            yield f"{workload}: shares a budget"


def services_reach_their_pods(release):
    by_headless = {True: release.workers, False: release.routers}
    services = release.of("Service")
    if len(services) != 2:
        yield f"{len(services)} services"
    for service in services:
        spec = service["spec"]
        headless = spec.get("clusterIP") == "None"
        chosen = [each for each in release.workloads + release.tests
                  if matches({"matchLabels": spec["selector"]}, each.labels)]
        if chosen != by_headless[headless]:
            yield f"{service['metadata']['name']} chooses {[str(each) for each in chosen]}"
        for port in spec["ports"]:
            listen = {"http": "http", "grpc": "grpc", "worker": "listen"}[port["name"]]
            for each in chosen:
                if each.flag(listen) != f"{release.listen_address}:{each.ports.get(port['targetPort'])}":
                    yield f"{each}: --{listen}={each.flag(listen)}, {port}"
        if headless and not spec.get("publishNotReadyAddresses"):
            yield "workers that are not ready are hidden from their routers"
        if headless and release.routers[0].flag("workers-dns") != (
                f"{service['metadata']['name']}:{spec['ports'][0]['port']}"):
            yield f"routers ask for {release.routers[0].flag('workers-dns')}"
        if headless and any(each.flag("listen").rsplit(":", 1)[1] != str(spec["ports"][0]["port"]) for each in chosen):
            yield "a worker listens elsewhere"


def routers_know_their_names(release):
    name, = [body["metadata"]["name"] for body in release.of("Service") if body["spec"].get("clusterIP") != "None"]
    hosts = release.routers[0].flag("allowed-host").split(",")
    wanted = {name, f"{name}.{NAMESPACE}", f"{name}.{NAMESPACE}.svc", f"{name}.{NAMESPACE}.svc.cluster.local",
              *filter(None, [release.value("tls.clients.name")]), *release.value("router.allowedHosts", []), *release.value("routes.httpHostnames", []),
              *release.value("routes.grpcHostnames", [])}
    if set(hosts) != wanted:
        yield f"--allowed-host: {sorted(set(hosts) ^ wanted)}"
    for route in release.of("HTTPRoute") + release.of("GRPCRoute"):
        if not set(route["spec"]["hostnames"]) <= set(hosts):
            yield f"{route['kind']}: {route['spec']['hostnames']} would be refused"
        port = {"HTTPRoute": 8000, "GRPCRoute": 9000}[route["kind"]]
        if route["spec"]["rules"][0]["backendRefs"] != [{"name": name, "port": port}]:
            yield f"{route['kind']}: goes to {route['spec']['rules'][0]['backendRefs']}"
    for certificate in release.of("Certificate"):
        names = set(certificate["spec"]["dnsNames"])
        if certificate["metadata"]["name"].endswith("-clients"):
            wanted = {host for host in hosts if not re.fullmatch(r"[\d.]+|.*:.*", host)}
            workloads, flag, usages = release.routers, "tls-cert", {"server auth"}
        else:
            wanted, workloads = {release.workers[0].flag("fleet-tls-name")}, release.workloads
            flag, usages = "fleet-tls-cert", {"server auth", "client auth"}
        if names != wanted or set(certificate["spec"]["usages"]) != usages:
            yield f"{certificate['metadata']['name']}: {names} for {certificate['spec']['usages']}"
        for workload in workloads:
            volume = workload.flag(flag).split("/")[-2]
            if {"name": volume, "secret": {"secretName": certificate["spec"]["secretName"], "defaultMode": 0o440}} \
                    not in workload.pod["volumes"]:
                yield f"{workload}: does not have {certificate['spec']['secretName']}"


def gateways_speak_as_routers_do(release):
    """TLS where routers do, to the name that their certificate carries."""
    routes, policies = release.of("HTTPRoute") + release.of("GRPCRoute"), release.of("BackendTLSPolicy")
    router, = release.routers
    if router.flag("tls-client-ca") and routes:
        yield "a gateway has no certificate"
    if bool(policies) != bool(routes and router.flag("tls-cert")):
        yield f"{len(policies)} BackendTLSPolicies"
    for policy in policies:
        authority = {"wellKnownCACertificates": "System"}
        if release.value("tls.clients.privateCa"):
            authority = {"caCertificateRefs": [{"group": "", "kind": "Secret", "name": release.secret_of(router, router.flag("tls-cert"))}]}
        if release.value("routes.caConfigMap"):
            authority = {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": release.value("routes.caConfigMap")}]}
        if policy["spec"] != {"targetRefs": [{"group": "", "kind": "Service", "name": router.name}],
                              "validation": {"hostname": release.clients_name, **authority}}:
            yield f"{policy['spec']}, want {release.clients_name} by {authority}"


def config_is_as_given(release):
    data, = [body["data"] for body in release.of("ConfigMap") if "router.yaml" in body["data"]]
    if yaml.safe_load(data["log-level.yaml"]) != {"log-level": release.value("logLevel", "info")}:
        yield f"log-level.yaml: {data['log-level.yaml']}"
    for workload in release.workloads:
        config = release.value("router.config", {}) if workload.is_router else release.pool(workload).get("config", {})
        path = workload.flag("config")
        if (path is not None) != bool(config):
            yield f"{workload}: --config={path}"
        elif path and yaml.safe_load(data[path.rsplit("/", 1)[1]]) != config:
            yield f"{workload}: {path} is {data[path.rsplit('/', 1)[1]]}"
        if set(config) & set(workload.flags):
            yield f"{workload}: the command line hides {set(config) & set(workload.flags)}"


def model_is_read_only(release):
    for workload in release.workloads:
        volume, = [each for each in workload.pod["volumes"] if each["name"] == "model"]
        model = release.value("model")
        copy = workload.pod.get("initContainers", [])
        if bool(copy) != ("copy" in model):
            yield f"{workload}: {len(copy)} init containers"
        source = {"existingClaim": lambda: volume["persistentVolumeClaim"] == {"claimName": model["existingClaim"],
                                                                               "readOnly": True},
                  "hostPath": lambda: volume["hostPath"] == {"path": model["hostPath"], "type": "Directory"},
                  "copy": lambda: volume["emptyDir"] == {"sizeLimit": model["copy"]["size"]}}
        kind, = set(source) & set(model)
        try:
            right = source[kind]()
        except KeyError:
            right = False
        if not right:
            yield f"{workload}: {kind} became {volume}"
        mount, = [each for each in workload.container["volumeMounts"] if each["name"] == "model"]
        if mount.get("subPath") != model.get("subPath") or mount["mountPath"] != workload.flag("model"):
            yield f"{workload}: the model is at {mount}"
        for container in copy:
            if ("*.safetensors" in container["command"][2]) != workload.is_router:
                yield f"{workload}: {'copies' if workload.is_router else 'leaves out'} the weights"
            to, = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "model"]
            if container["command"][:2] != ["sh", "-ec"] or container["command"][3:] != [model["copy"]["path"], to]:
                yield f"{workload}: copies from and to {container['command'][3:]}"
            if to in ("/model", "/models", "/source"):
                yield f"{workload}: {to} of the image is hidden behind the copy"


def scalers_own_their_replicas(release):
    scalers = release.of("HorizontalPodAutoscaler") + release.of("ScaledObject")
    targets = {scaler["spec"]["scaleTargetRef"]["name"]: scaler for scaler in scalers}
    known = set(METRIC.findall((ROOT / "docs/metrics.md").read_text()))
    chart = ROOT / "deploy/helm/tandem"
    roles = yaml.safe_load((chart / "files/autoscaling.yaml").read_text())
    per_pod = yaml.safe_load((chart / "values.yaml").read_text())["autoscaling"]["targets"]
    per_pod |= release.value("autoscaling.targets", {})
    wanted_kind = {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[release.value("autoscaling.kind", "hpa")]
    for workload in release.workloads:
        pool = release.value("router", {}) if workload.is_router else release.pool(workload)
        limits = pool.get("autoscaling")
        scaler = targets.pop(workload.name, None)
        if bool(limits) != (scaler is not None) or bool(limits) == ("replicas" in workload.body["spec"]):
            yield f"{workload}: autoscaling {limits}, scaler {scaler is not None}"
        if not limits and workload.body["spec"].get("replicas") != pool.get("replicas", 2 if workload.is_router else 1):
            yield f"{workload}: {workload.body['spec'].get('replicas')} replicas"
        if not scaler:
            continue
        spec, text = scaler["spec"], json.dumps(scaler)
        if scaler["kind"] != wanted_kind or [spec.get("minReplicas", spec.get("minReplicaCount")),
                                             spec.get("maxReplicas", spec.get("maxReplicaCount"))] != [
                limits["minReplicas"], limits["maxReplicas"]]:
            yield f"{workload}: {scaler['kind']} with {spec}"
        by = roles["router" if workload.is_router else workload.flag("role")]
        wanted = [(each["metric"], str(per_pod[each["target"]])) for each in by]
        found = [(each["pods"]["metric"]["name"], each["pods"]["target"]["averageValue"])
                 for each in spec.get("metrics", [])]
        if wanted_kind == "ScaledObject":
            wanted = [(each["target"], str(per_pod[each["target"]])) for each in by]
            found = [(each["name"], each["metadata"]["threshold"]) for each in spec["triggers"]]
        if found != wanted:
            yield f"{workload}: is scaled by {found}, want {wanted}"
        asked = {re.sub("_(sum|count|bucket)$", "", name) for name in METRIC.findall(text)}
        if not asked <= known or not asked:
            yield f"{workload}: nobody exports {sorted(asked - known)}"
        for trigger in spec.get("triggers", []):
            query = trigger["metadata"]["query"]
            if f'namespace="{NAMESPACE}"' not in query:
                yield f"{workload}: {query}"
            pods = re.search(r'pod=~"([^"]*)"', query)[1]
            chosen = [str(each) for each in release.workloads if re.fullmatch(pods, f"{each}-6d4cf56db6-x7k2p")]
            if chosen != [str(workload)]:
                yield f"{workload}: {query} is about {chosen}"
    if targets:
        yield f"nobody is called {sorted(targets)}"


def monitors_find_every_pod(release):
    monitors = release.of("PodMonitor")
    if bool(monitors) != release.value("monitoring.podMonitor.enabled", False):
        yield f"{len(monitors)} PodMonitors"
    for workload in release.workloads if monitors else []:
        found = [body for body in monitors if matches(body["spec"]["selector"], workload.labels)]
        if len(found) != 1:
            yield f"{workload}: {len(found)} PodMonitors"
            continue
        endpoint, = found[0]["spec"]["podMetricsEndpoints"]
        tls = workload.container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
        if endpoint["port"] != "admin" or endpoint["path"] != "/metrics" or (endpoint.get("scheme") == "https") != tls:
            yield f"{workload}: {endpoint}"
        named = workload.flag("fleet-tls-name")
        secret = workload.flag("fleet-tls-ca") and release.value("tls.fleet.caSecret", release.secret_of(workload, workload.flag("fleet-tls-cert")))
        if workload.is_router:
            named = release.clients_name
            secret = release.value("tls.clients.privateCa") and release.secret_of(workload, workload.flag("tls-cert"))
        wanted = {"serverName": named, **({"ca": {"secret": {"name": secret, "key": "ca.crt"}}} if secret else {})}
        if tls and endpoint["tlsConfig"] != wanted:
            yield f"{workload}: {endpoint['tlsConfig']}, want {wanted}"
        if not release.value("monitoring.podMonitor.labels", {}).items() <= found[0]["metadata"]["labels"].items():
            yield f"{workload}: labels of its PodMonitor"
    if any(matches(body["spec"]["selector"], test.labels) for body in monitors for test in release.tests):
        yield "a test is monitored"


def watching_is_what_deploy_has(release):
    maps = [body for body in release.of("ConfigMap") if "router.yaml" not in body["data"]]
    if release.value("monitoring.dashboards.enabled", False):
        body, = maps
        if body["data"] != {path.name: path.read_text() for path in DASHBOARDS}:
            yield "the dashboards are not those of deploy/grafana"
        if body["metadata"]["labels"].get("grafana_dashboard") != "1":
            yield "the sidecar does not find the dashboards"
    elif maps:
        yield f"nobody asked for {maps[0]['metadata']['name']}"
    rules = release.of("PrometheusRule")
    if bool(rules) != release.value("monitoring.rules.enabled", False):
        yield f"{len(rules)} PrometheusRules"
    for body in rules:
        wanted = [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
        if base := release.value("monitoring.rules.runbookBaseUrl"):
            for rule in (rule for rule in wanted if "alert" in rule):
                rule["annotations"]["runbook_url"] = f"{base}/{rule['annotations']['runbook_url']}"
        found = [rule for group in body["spec"]["groups"] for rule in group["rules"]]
        if [yaml.safe_dump(rule) for rule in found] != [yaml.safe_dump(rule) for rule in wanted]:
            yield "the rules are not those of deploy/prometheus"
        names = [group["name"] for group in body["spec"]["groups"]]
        if len(set(names)) != len(names):
            yield f"groups {names}"


def the_test_is_a_hook(release):
    router, = release.routers
    cannot = [why for why, true in {
        "it has no key": router.flag("api-key-file") and not release.value("test.apiKeySecret"),
        "it has no certificate": router.flag("tls-client-ca"),
        "it has no cache_salt": release.value("router.config.isolate-cache"),
        "it knows no public authority's name": router.flag("tls-cert") and (
            not release.value("tls.clients.privateCa") or release.value("tls.clients.name"))}.items() if true]
    if len(release.tests) != (0 if cannot else 1):
        yield f"{len(release.tests)} tests, {cannot}"
    service, = [body for body in release.of("Service") if body["spec"].get("clusterIP") != "None"]
    for test in release.tests:
        if test.body["metadata"]["annotations"].get("helm.sh/hook") != "test" or test.pod["restartPolicy"] == "Always":
            yield f"{test}: is no test"
        # It may be asked for before a router is ready; helm waits for five minutes.
        if test.pod["restartPolicy"] != "OnFailure" or not 180 <= test.pod.get("activeDeadlineSeconds", 0) < 300:
            yield f"{test}: asks once, or for too long"
        target = f"https://{release.clients_name}" if router.flag("tls-cert") else f"http://{service['metadata']['name']}"
        if test.flag("target") != f"{target}:8000":
            yield f"{test}: asks {test.flag('target')}"
        env = {entry["name"]: entry for entry in test.container.get("env", [])}
        if bool(router.flag("api-key-file")) and env["TANDEM_API_KEY"]["valueFrom"]["secretKeyRef"] != {
                "name": release.value("test.apiKeySecret"), "key": release.value("test.apiKeyKey", "key")}:
            yield f"{test}: its key is {env['TANDEM_API_KEY']}"
        if router.flag("tls-cert") and release.secret_of(test, env["SSL_CERT_FILE"]["value"]) != release.secret_of(
                router, router.flag("tls-cert")):
            yield f"{test}: believes {env['SSL_CERT_FILE']}"
        if test.flag("model") != release.routers[0].flag("served-model-name"):
            yield f"{test}: asks for {test.flag('model')}"


CHECKS = [names_are_legal, pods_are_confined, containers_have_limits, probes_ask_the_admin_port, grace_fits_the_drain,
          rollouts_suit_the_role, flags_are_known, fleets_agree_on_flags,
          files_are_mounted, secrets_are_those_named, sizes_come_from_the_limit, selectors_choose_their_own,
          services_reach_their_pods, routers_know_their_names, gateways_speak_as_routers_do, config_is_as_given, model_is_read_only,
          scalers_own_their_replicas, monitors_find_every_pod, watching_is_what_deploy_has, the_test_is_a_hook]
