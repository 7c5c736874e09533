"""Who may connect to whom under the NetworkPolicies that the chart renders."""
import dataclasses

from chart_checks import NAMESPACE, matches


@dataclasses.dataclass
class Pod:
    name: str
    labels: dict
    namespace: str = NAMESPACE

    @property
    def namespace_labels(self):
        return {"kubernetes.io/metadata.name": self.namespace}


def is_peer(peer, pod, policy_namespace, ip):
    if "ipBlock" in peer:
        return peer["ipBlock"]["cidr"] == ip
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"], pod.namespace_labels):
            return False
    elif pod.namespace != policy_namespace:
        return False
    return matches(peer.get("podSelector", {}), pod.labels)


def has_port(rule, port, protocol):
    return "ports" not in rule or any(
        each["port"] <= port <= each.get("endPort", each["port"]) and each.get("protocol", "TCP") == protocol
        for each in rule["ports"])


def one_way(policies, direction, key, pod, other, port, protocol, ip):
    """Whether the policies of a pod let it have a connection with the other one."""
    own = [policy["spec"] for policy in policies
           if direction in policy["spec"]["policyTypes"] and pod.namespace == NAMESPACE and
           matches(policy["spec"]["podSelector"], pod.labels)]
    return not own or any(
        has_port(rule, port, protocol) and (not rule.get(key) or any(
            is_peer(peer, other, NAMESPACE, ip) for peer in rule[key]))
        for spec in own for rule in spec.get(direction.lower(), []))


def connects(policies, source, target, port, protocol="TCP", ip=None):
    return (one_way(policies, "Egress", "to", source, target, port, protocol, ip) and
            one_way(policies, "Ingress", "from", target, source, port, protocol, ip))


def policies_let_in_whom_they_should(release):
    policies = release.of("NetworkPolicy")
    if bool(policies) != release.value("networkPolicy.enabled", True):
        yield f"{len(policies)} NetworkPolicies"
    if not policies:
        return
    router = Pod("router", release.routers[0].labels)
    workers = [Pod(worker.name, worker.labels) for worker in release.workers]
    test = Pod("test", {**release.routers[0].body["spec"]["selector"]["matchLabels"], "app.kubernetes.io/component": "test"})
    monitor_of = release.value("networkPolicy.prometheus", [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}])[0]
    prometheus = Pod("prometheus", monitor_of.get("podSelector", {}).get("matchLabels", {}),
                     monitor_of["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"])
    stranger = Pod("stranger", {"app.kubernetes.io/name": "other"}, "elsewhere")
    neighbour = Pod("neighbour", {**workers[0].labels, "app.kubernetes.io/instance": "other"})
    dns = Pod("dns", {"k8s-app": "kube-dns"}, "kube-system")
    cidr = release.value("networkPolicy.clients", [{}])[0].get("ipBlock", {}).get("cidr")
    ucx = any(worker.flag("transport") == "ucx" for worker in release.workers)
    first, last = map(int, release.value("networkPolicy.ucxPorts", "20000-20100").split("-"))

    wanted = [(test, router, 8000, True), (test, router, 9090, False),
              (stranger, router, 8000, True), (stranger, router, 9000, True), (stranger, router, 9090, False),
              (prometheus, router, 9090, True)]
    for worker in workers:
        wanted += [(router, worker, 7000, True), (router, worker, 9090, False), (router, worker, first, False),
                   (worker, router, 8000, False), (worker, router, 9000, False),
                   (stranger, worker, 7000, False), (stranger, worker, 9090, False), (stranger, worker, first, False),
                   (neighbour, worker, 7000, False), (test, worker, 7000, False),
                   (prometheus, worker, 9090, True), (prometheus, worker, 7000, False),
                   (worker, stranger, 443, False)]
        wanted += [(worker, other, port, allowed) for other in workers
                   for port, allowed in ((7000, True), (first, ucx), (last, ucx), (first - 1, False),
                                         (last + 1, False), (9090, False))]
    wanted.append((router, stranger, 443, False))
    for source, target, port, allowed in wanted:
        # Clients may be addresses alone.
        ip = cidr if source is stranger else None
        if connects(policies, source, target, port, ip=ip) != allowed:
            yield f"{source.name} to {target.name}:{port} is {'refused' if allowed else 'allowed'}"
    if not connects(policies, router, dns, 53, "UDP"):
        yield "a router cannot resolve its workers' name"
    variable = {"name": "UCX_TCP_PORT_RANGE", "value": f"{first}-{last}"}
    for worker in release.workers:
        if (variable in worker.container["env"]) != (worker.flag("transport") == "ucx"):
            yield f"{worker}: UCX's ports are not those of the policy"
