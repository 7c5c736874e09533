"""TLS on every link: who shows no good certificate is refused, and certificates change under load."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import threading

import httpx
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from certificates import Authority, client_flags, context, fleet_flags
from fleet import Router, Worker
from server import BIN, DEMO_MODEL, TOOLS, Server, free_port, wait_until

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
BODY = {"model": "default", "prompt": list(range(5, 305)), "max_tokens": 24, "temperature": 0}


class WatchedRouter(Router):
    """Whose metrics, and those of its workers, are at an address of their own."""

    def __init__(self, folder, workers, authority, *flags, **more):
        self.admin = f"127.0.0.1:{free_port()}"
        self.anybody = context(authority)
        super().__init__(folder, workers, f"--admin={self.admin}", *flags, **more)

    def scrape(self):
        return httpx.get(f"https://{self.admin}/metrics/fleet", verify=self.anybody, timeout=10).text


class Fleet:
    """A prefill and a decode worker and a router, each with an address of its own for probes."""

    def __init__(self, folder, authority, *flags, decode_name="fleet.test", **files):
        """`files`: of the prefill and the decode worker, if they are not those of the router."""
        self.authority = authority
        # For names and for the loopback address, which is what tests call.
        self.files = authority.issue("fleet", *{"fleet.test", decode_name})
        self.front = authority.issue("front", "127.0.0.1", "localhost")
        self.client = authority.issue("client", "fleet.test")
        self.context = context(authority, self.client)
        self.admin = {name: f"127.0.0.1:{free_port()}" for name in ("prefill", "decode")}

        def worker(role, name="fleet.test"):
            return Worker(folder, f"{role}-0", f"--role={role}", "--transport=grpc", f"--admin={self.admin[role]}",
                          *fleet_flags(files.get(role, self.files), name))
        self.prefill, self.decode = worker("prefill"), worker("decode", decode_name)
        self.router = WatchedRouter(folder, [self.prefill, self.decode], authority, "--disaggregate=always",
                                    *fleet_flags(self.files), *client_flags(self.front), *flags, tls=self.context)
        self.admin["router"] = self.router.admin

    def __enter__(self):
        with contextlib.ExitStack() as started:
            for one in (self.prefill, self.decode, self.router):
                started.enter_context(one)
            self.router.wait_alive("prefill", 1)
            self.router.wait_alive("decode", 1)
            self.running = started.pop_all()
        return self

    def __exit__(self, *failure):
        self.running.__exit__(*failure)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, authority):
    with Fleet(tmp_path_factory.mktemp("fleet"), authority) as running:
        yield running


def admin_metrics(fleet, name):
    believed = context(fleet.authority)
    believed.check_hostname = name == "router"  # Workers show the fleet's certificate.
    answer = httpx.get(f"https://{fleet.admin[name]}/metrics", verify=believed)
    assert answer.status_code == 200
    return answer.text


def said_to(address, tls, request):
    """The first bytes of the answer, or why there is none."""
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=20) as plain:
            if tls is None:
                plain.sendall(request)
                return plain.recv(1000)
            with tls.wrap_socket(plain, server_hostname=host) as secure:
                secure.sendall(request)
                return secure.recv(1000)
    except (ssl.SSLError, ConnectionError) as why:
        return why


def test_what_a_fleet_says_is_as_without(fleet, tmp_path):
    with Server(tmp_path, DEMO_MODEL, "--hybrid=1") as plain:
        expected = plain.client.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
    answer = fleet.router.client.post("/v1/completions", json=BODY)
    assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == expected
    streamed = ""
    with fleet.router.client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                streamed += json.loads(line[6:])["choices"][0]["text"]
    assert streamed == expected
    assert fleet.router.total("tandem_kv_transfer_bytes_total", worker="decode-0") > 0, "blocks came over the link"
    called = subprocess.run(
        [TOOLS / "grpcurl", "-cacert", f"{fleet.client}.ca", "-cert", f"{fleet.client}.pem", "-key",
         f"{fleet.client}.key", "-d", json.dumps({"model": "default", "token_ids": {"ids": [1]}}), fleet.router.grpc,
         "tandem.v1.Inference/Generate"], capture_output=True, text=True, timeout=60)
    assert called.returncode == 0 and "outputs" in called.stdout, called


def test_our_own_clients_show_their_certificates(fleet):
    target = [f"--target={fleet.router.url}", f"--tls-ca={fleet.client}.ca"]
    shown = [f"--tls-cert={fleet.client}.pem", f"--tls-key={fleet.client}.key"]
    for command in (["bench", "--requests=2", "--connections=1", "--prompt-tokens=8", "--output-tokens=4"],
                    ["chat", "--message=And God said", "--max-tokens=4"]):
        def said(*flags):
            return subprocess.run([BIN / "tandem", *command, *flags], capture_output=True, text=True, timeout=60,
                                  env=os.environ | {"SSL_CERT_FILE": "/dev/null"})
        assert said(*target, *shown).returncode == 0, said(*target, *shown)
        assert said(*target).returncode == 1, "it is not known"
        missing = said(*target, shown[0].replace(".pem", ".none"), shown[1])
        assert missing.returncode == 1 and ".none: No such file" in missing.stderr + missing.stdout, missing
        torn = said(*target, shown[0])
        assert torn.returncode == 2 and "--tls-key" in torn.stderr, torn


def bad_clients(fleet, protocol):
    """By name: no TLS, and certificates that are none of the authority's."""
    other = Authority(fleet.authority.folder)
    made = {"in the clear": None, "no certificate": context(fleet.authority, protocol=protocol),
            "expired": context(fleet.authority, fleet.authority.issue("old", "fleet.test", expired=True), protocol),
            "unsigned": context(fleet.authority, other.issue("stranger", "fleet.test"), protocol),
            "another protocol": context(fleet.authority, fleet.client, "spdy/3")}
    for tls in made.values():
        if tls:
            tls.check_hostname = False  # It is the client that is wrong here.
    return made


def test_who_shows_no_good_certificate_is_told_nothing(fleet):
    http = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for address, protocol, request, answer in [
            (fleet.router.http, "http/1.1", http, b"HTTP/1.1 200"),
            (fleet.router.grpc, "h2", HTTP2_PREFACE, bytes([0, 0])),
            (fleet.prefill.target, "h2", HTTP2_PREFACE, bytes([0, 0])),
            (fleet.decode.target, "h2", HTTP2_PREFACE, bytes([0, 0]))]:
        good = context(fleet.authority, fleet.client, protocol)
        good.check_hostname = False
        said = said_to(address, good, request)
        assert isinstance(said, bytes) and said.startswith(answer), (address, said)
        for name, tls in bad_clients(fleet, protocol).items():
            said = said_to(address, tls, request)
            assert isinstance(said, Exception) or said == b"", (address, name, said)
    stranger = lenient(fleet.authority, fleet.authority.issue("stranger", "another.test"), "h2")
    for worker in (fleet.prefill, fleet.decode):  # The authority signs others' certificates, too.
        said = said_to(worker.target, stranger, HTTP2_PREFACE)
        assert isinstance(said, Exception) or said == b"", said
    for name, address in fleet.admin.items():
        anybody = context(fleet.authority)
        anybody.check_hostname = False
        assert said_to(address, anybody, http).startswith(b"HTTP/1.1 200"), name
        said = said_to(address, None, http)
        assert isinstance(said, Exception) or said == b"", (name, said)
    counted = admin_metrics(fleet, "prefill")
    # The last of them at the address for probes.
    assert 'tandem_tls_handshakes_total{result="failed",use="fleet",worker="prefill-0"} 7' in counted, counted
    assert fleet.router.client.post("/v1/completions", json=BODY).status_code == 200


def listening(pid):
    """The ports of the TCP sockets on which a process listens."""
    sockets = {os.readlink(fd) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def port(address):
    return int(address.rpartition(":")[2])


def test_nothing_else_listens(fleet):
    assert listening(fleet.router.process.pid) == {port(fleet.router.http), port(fleet.router.grpc),
                                                   port(fleet.admin["router"])}
    for role, worker in (("prefill", fleet.prefill), ("decode", fleet.decode)):
        assert listening(worker.process.pid) == {port(worker.target), port(fleet.admin[role])}


class Deaf(Router):
    """A router that is there once it has given up to hear of its worker."""

    def wait_ready(self, seconds=60):
        wait_until(lambda: "no worker registers" in self.log(), seconds, "the router says so")


def no_worker_is_believed(tmp_path, authority, worker, why):
    """A router with a good certificate finds none there, and says why."""
    with Deaf(tmp_path, [worker], *fleet_flags(authority.issue("good", "fleet.test")),
              "--liveness-scale=0.2") as router:
        ready = router.client.get("/ready")
        assert ready.status_code == 503 and ready.json()["awaited"] == [worker.target], ready
        unheard = [line for line in router.log().splitlines() if "no worker registers" in line]
        assert f'"address":"{worker.target}"' in unheard[0] and why in unheard[0], unheard
        return router.log()


@pytest.mark.parametrize("wrong, why", [("name", "hostname mismatch"), ("unsigned", "self-signed certificate in"),
                                        ("in the clear", "")])
def test_a_router_believes_no_worker_with_a_bad_certificate(tmp_path, authority, wrong, why):
    # It finds its certificate good: it is for its name, or of its authority.
    name = "another.test" if wrong == "name" else "fleet.test"
    signs = Authority(authority.folder) if wrong == "unsigned" else authority
    bad = signs.issue("bad", name)
    bad.with_suffix(".ca").write_bytes(signs.pem() + authority.pem())
    with Worker(tmp_path, "worker", *([] if wrong == "in the clear" else fleet_flags(bad, name))) as worker:
        log = no_worker_is_believed(tmp_path, authority, worker, why)
        told = "the certificate of who was dialled is refused" in log
        assert told == (wrong != "in the clear"), log


class Shown:
    """Listens, and shows a certificate that no process of ours would show."""

    def __init__(self, path):
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.set_alpn_protocols(["h2"])
        self.tls.load_cert_chain(f"{path}.pem", f"{path}.key")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.num_shaken, self.heard = 0, b""
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while True:
            try:
                accepted, _ = self.listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), accepted:
                with self.tls.wrap_socket(accepted, server_side=True) as secure:
                    self.num_shaken += 1
                    self.heard += secure.recv(1000)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *failure):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.mark.parametrize("wrong, why", [
    ({"expired": True}, "certificate has expired"), ({"in_days": 2}, "certificate is not yet valid"),
    ({"purposes": [ExtendedKeyUsageOID.CLIENT_AUTH]}, "unsuitable certificate purpose")])
def test_a_router_believes_none_that_shows_what_workers_would_not(tmp_path, authority, wrong, why):
    with Shown(authority.issue("bad", "fleet.test", **wrong)) as worker:
        no_worker_is_believed(tmp_path, authority, worker, why)
    assert worker.num_shaken > 0 and worker.heard == b"", "it was told something"


def test_who_is_refused_and_who_refuses_both_say_so(tmp_path, authority):
    files = Authority(authority.folder).issue("good", "fleet.test")
    files.with_suffix(".ca").write_bytes(files.with_suffix(".ca").read_bytes() + authority.pem())
    with Worker(tmp_path, "worker", *fleet_flags(authority.issue("worker", "fleet.test"))) as worker, \
            Deaf(tmp_path, [worker], *fleet_flags(files), "--liveness-scale=0.2") as router:
        assert "it may refuse this process's certificate" in router.log(), router.log()
        assert "TSI_DATA_CORRUPTED" not in router.log(), router.log()
        refused = [line for line in worker.log_path.read_text().splitlines() if "certificate is refused" in line]
        assert '"peer":"127.0.0.1:' in refused[0] and "DNS:fleet.test" in refused[0], refused
        assert "self-signed certificate in certificate chain" in refused[0] and len(refused) < 12, refused


def test_a_worker_believes_no_worker_with_a_bad_certificate(tmp_path, authority):
    # It asks for another name than its router does, who has both.
    with Fleet(tmp_path, authority, decode_name="another.test", prefill=authority.issue("prefill", "fleet.test"),
               decode=authority.issue("decode", "fleet.test", "another.test")) as fleet:
        answer = fleet.router.client.post("/v1/completions", json=BODY)
        assert answer.status_code == 200, "it computes the prompt itself"
        assert fleet.router.total("tandem_kv_transfer_bytes_total", worker="decode-0") == 0
        assert "hostname mismatch" in fleet.decode.log_path.read_text()


def serial(address, authority, client, protocol):
    """Of the certificate that is shown there now."""
    tls = context(authority, client, protocol)
    tls.check_hostname = False
    host, number = address.split(":")
    with socket.create_connection((host, int(number)), timeout=20) as plain:
        with tls.wrap_socket(plain, server_hostname=host) as secure:
            return secure.getpeercert()["serialNumber"]


def test_certificates_and_authorities_change_under_load(tmp_path):
    first, second = Authority(tmp_path), Authority(tmp_path)
    with Fleet(tmp_path, first) as fleet:
        both = first.pem() + second.pem()
        def believing_both(path):
            made = context(first, path)
            made.load_verify_locations(cadata=second.pem().decode())
            return made
        clients = [believing_both(fleet.client)]
        stop, failures, done = threading.Event(), [], []

        def ask():
            while not stop.is_set():
                try:
                    answer = httpx.post(f"{fleet.router.url}/v1/completions", json=BODY, verify=clients[-1], timeout=60)
                    (done if answer.status_code == 200 else failures).append(answer.status_code)
                except httpx.HTTPError as why:
                    failures.append(why)
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        places = [(fleet.router.http, "http/1.1"), (fleet.router.grpc, "h2"), (fleet.prefill.target, "h2"),
                  (fleet.decode.target, "h2")]

        def shown(authority, client):
            return [serial(address, authority, client, protocol) for address, protocol in places]
        before = shown(first, fleet.client)
        # Everybody believes both; then everybody is signed by the second; then the first is forgotten.
        for path in (fleet.files, fleet.front):
            path.with_suffix(".ca").write_bytes(both)
        newcomer = second.issue("newcomer", "fleet.test")

        def accepted():
            try:
                return shown(first, newcomer) and all(
                    isinstance(said_to(address, lenient(first, newcomer, protocol), HTTP2_PREFACE), bytes)
                    for address, protocol in places[1:])
            except (ssl.SSLError, ConnectionError):
                return False
        wait_until(accepted, 30, "the second authority's clients are believed")
        for name, hosts in (("fleet", ["fleet.test"]), ("front", ["127.0.0.1", "localhost"])):
            second.issue(name, *hosts, path=fleet.authority.folder / name)
            (fleet.authority.folder / name).with_suffix(".ca").write_bytes(both)

        def replaced():
            try:
                return not set(shown(second, newcomer)) & set(before)
            except ssl.SSLError:
                return False
        wait_until(replaced, 30, "the new certificates are shown")
        clients.append(believing_both(newcomer))
        for path in (fleet.files, fleet.front):
            path.with_suffix(".ca").write_bytes(second.pem())
        wait_until(lambda: isinstance(said_to(fleet.decode.target, lenient(second, fleet.client, "h2"),
                                              HTTP2_PREFACE), Exception), 30, "the first is forgotten")
        # A worker that comes back must be dialled anew, with what is believed now.
        answered = len(done)
        fleet.decode.kill()
        fleet.decode.start()
        fleet.router.anybody = clients[-1]
        fleet.router.wait_alive("decode", 1)
        wait_until(lambda: len(done) > answered + 4 or failures, 60, "the load goes on")
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures and len(done) > 10, (failures, len(done))
        assert "the certificate changes" in fleet.router.log()


def test_a_pair_that_does_not_fit_breaks_no_new_connection(tmp_path, authority):
    with Fleet(tmp_path, authority, decode=authority.issue("decode", "fleet.test")) as fleet:
        other = authority.issue("other", "fleet.test")
        fleet.files.with_suffix(".pem").write_bytes(other.with_suffix(".pem").read_bytes())
        wait_until(lambda: "the certificate stays as it is" in fleet.router.log(), 30, "it says so")
        for _ in range(2):  # The second one when any follower has looked.
            fleet.decode.kill()
            fleet.decode.start()
            fleet.router.wait_alive("decode", 1)
            assert fleet.router.client.post("/v1/completions", json=BODY).status_code == 200


def renewals(authority):
    """By what the log says of them: pairs, each with its authorities, that peers would refuse."""
    def files(signs, name="fleet.test", **how):
        path = signs.issue("renewed", name, **how)
        return {ending: path.with_suffix(ending).read_bytes() for ending in (".pem", ".key", ".ca")}
    good = files(authority)
    stranger = Authority(authority.folder)
    yield "certificate is not yet valid", files(authority, in_days=2)
    yield "certificate has expired", files(authority, expired=True)
    yield "unsuitable certificate purpose", files(authority, purposes=[ExtendedKeyUsageOID.SERVER_AUTH])
    yield "is not one for servers", files(authority, purposes=[ExtendedKeyUsageOID.CLIENT_AUTH])
    yield "hostname mismatch", files(authority, "another.test")
    yield "unable to get local issuer certificate", files(stranger) | {".ca": authority.pem()}
    yield "who believes", good | {".ca": stranger.pem()}
    yield "more than 10 certificates of a chain", good | {".pem": good[".pem"] + 1022 * stranger.pem()}


def test_a_renewal_that_peers_would_refuse_breaks_no_connection(tmp_path, authority):
    with Fleet(tmp_path, authority, decode=authority.issue("decode", "fleet.test")) as fleet:
        stop, failures, done = threading.Event(), [], []

        def ask():
            while not stop.is_set():
                try:
                    answer = httpx.post(f"{fleet.router.url}/v1/completions", json=BODY, verify=fleet.context, timeout=60)
                    (done if answer.status_code == 200 else failures).append(answer.status_code)
                except httpx.HTTPError as why:
                    failures.append(why)
        thread = threading.Thread(target=ask)
        thread.start()
        before = serial(fleet.prefill.target, authority, fleet.client, "h2")
        told = 0
        for why, files in renewals(authority):
            for ending, text in files.items():
                replacement = tmp_path / "replacement"
                replacement.write_bytes(text)
                replacement.rename(fleet.files.with_suffix(ending))
            for process in (fleet.router, fleet.prefill):
                wait_until(lambda: any("the certificate stays as it is" in line and why in line
                                       for line in process.log_path.read_text().splitlines()), 30, why)
            # Both dial it, and it dials the prefill worker.
            fleet.decode.kill()
            fleet.decode.start()
            fleet.router.wait_alive("decode", 1)
            answered = len(done)
            wait_until(lambda: failures or len(done) > answered + 1, 60, f"the load goes on: {why}")
            assert serial(fleet.prefill.target, authority, fleet.client, "h2") == before, why
            told += 1
        assert 'tandem_certificate_refused{use="fleet",worker="prefill-0"} 1' in admin_metrics(fleet, "prefill")
        changes = fleet.router.log().count("the certificate changes")
        authority.issue("fleet", "fleet.test")
        wait_until(lambda: fleet.router.log().count("the certificate changes") > changes, 30, "the good one is taken")
        wait_until(lambda: serial(fleet.prefill.target, authority, fleet.client, "h2") != before, 30, "and shown")
        assert 'tandem_certificate_refused{use="fleet",worker="prefill-0"} 0' in admin_metrics(fleet, "prefill")
        stop.set()
        thread.join()
        assert not failures and len(done) > 10 and told == 8, (failures, len(done), told)


def lenient(authority, client, protocol):
    tls = context(authority, client, protocol)
    tls.check_hostname = False
    return tls


def test_files_that_do_not_fit_change_nothing(tmp_path, authority):
    files = authority.issue("here", "127.0.0.1")
    with Server(tmp_path, DEMO_MODEL, "--hybrid=1", *client_flags(files, asks=False),
                tls=context(authority)) as server:
        before = serial(server.http, authority, None, "http/1.1")
        good = files.with_suffix(".pem").read_bytes()
        files.with_suffix(".pem").write_bytes(authority.issue("there", "127.0.0.1").with_suffix(".pem").read_bytes())
        wait_until(lambda: "the certificate stays as it is" in server.log(), 30, "it says so")
        assert serial(server.http, authority, None, "http/1.1") == before
        files.with_suffix(".pem").write_bytes(good)
        bench = [BIN / "tandem", "bench", f"--target={server.url}", "--requests=2", "--connections=1",
                 "--prompt-tokens=8", "--output-tokens=4"]
        believed = subprocess.run(bench, env=os.environ | {"SSL_CERT_FILE": f"{files}.ca"}, capture_output=True,
                                  text=True, timeout=60)
        assert believed.returncode == 0, believed.stderr
        strange = subprocess.run(bench, env=os.environ | {"SSL_CERT_FILE": "/dev/null"}, capture_output=True,
                                 text=True, timeout=60)
        assert strange.returncode != 0 and "certificate" in strange.stderr + strange.stdout
        bench[2] = bench[2].replace("127.0.0.1", "localhost")
        misnamed = subprocess.run(bench, env=os.environ | {"SSL_CERT_FILE": f"{files}.ca"}, capture_output=True,
                                  text=True, timeout=60)
        assert misnamed.returncode != 0 and "certificate" in misnamed.stderr + misnamed.stdout


def started(*flags):
    """How a router ends that cannot start, or None if it runs."""
    command = [str(BIN / "tandem-router"), f"--model={DEMO_MODEL}", "--workers=127.0.0.1:9", "--grpc=127.0.0.1:0",
               *flags]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True)
    said = ""
    for line in process.stderr:
        said += line
        if '"listening"' in line:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            return None
    assert process.wait(60) == 2, said
    return said


def test_a_public_address_needs_tls_and_known_clients(tmp_path, authority):
    files = authority.issue("public", "localhost")
    keys = tmp_path / "keys"
    keys.write_text(subprocess.run([BIN / "tandem", "key", "one"], capture_output=True, text=True,
                                   check=True).stdout.splitlines()[1].partition(": ")[2] + "\n")
    tls, known = client_flags(files, asks=False), [f"--api-key-file={keys}"]
    for flags in ([], tls, known):
        said = started("--http=0.0.0.0:0", *flags)
        assert said and "--http" in said and "--tls-cert" in said and "--api-key-file" in said, (flags, said)
    for flags in (tls + known, client_flags(files), ["--insecure-public-listen"]):
        assert started("--http=0.0.0.0:0", *flags) is None, flags
    assert started("--http=127.0.0.1:0", "--admin=0.0.0.0:0") is None, "who is there sees no word of a client's"


def test_wrong_files_are_errors_at_once(tmp_path, authority):
    files, other = authority.issue("mine", "localhost"), authority.issue("others", "localhost")
    empty, locked = tmp_path / "empty", tmp_path / "locked"
    empty.write_text("nothing\n")
    subprocess.run(["openssl", "ec", "-aes128", "-passout", "pass:secret", "-in", f"{files}.key", "-out", locked],
                   check=True, capture_output=True)
    for flags, words in [
            ([f"--tls-cert={files}.pem"], ["--tls-key"]),
            ([f"--tls-client-ca={files}.ca"], ["--tls-cert"]),
            ([f"--tls-cert={files}.pem", f"--tls-key={other}.key"], ["others.key", "mine.pem"]),
            ([f"--tls-cert={tmp_path}/none", f"--tls-key={files}.key"], ["none", "No such file"]),
            ([f"--tls-cert={empty}", f"--tls-key={files}.key"], ["empty", "no PEM certificate"]),
            ([f"--tls-cert={files}.pem", f"--tls-key={locked}"], ["locked", "without a password"]),
            ([f"--tls-cert={files}.pem", f"--tls-key={files}.key", f"--tls-client-ca={empty}"], ["empty"]),
            ([f"--fleet-tls-cert={files}.pem"], ["--fleet-tls-ca"]),
            (fleet_flags(files), ["mine.pem", "DNS:localhost", "hostname mismatch"]),
            (fleet_flags(authority.issue("old", "fleet.test", expired=True)), ["old.pem", "has expired"]),
            (fleet_flags(files, ".test"), ["--fleet-tls-name", ".test"])]:
        said = started("--http=127.0.0.1:0", *flags)
        assert said and all(word in said for word in words), (flags, said)
