"""Keys of clients: who has none, or a wrong one, gets nothing but probes, by every route, method and address."""

import json
import os
import re
import socket
import subprocess

import openai
import pytest

from server import BIN, DEMO_MODEL, Server, grpcurl, wait_until

ROUTES = ["/v1/models", "/v1/models/default", "/v1/completions", "/v1/chat/completions", "/metrics", "/version", "/",
          "/no/such/route", "/health/", "/ready/x"]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
CALLS = {"tandem.v1.Inference/Generate": {"model": "default", "token_ids": {"ids": [1]}},
         "tandem.v1.Inference/GenerateStream": {"model": "default", "token_ids": {"ids": [1]}},
         "tandem.v1.Control/GetServerInfo": {}, "tandem.v1.Control/GetModelInfo": {},
         "tandem.v1.Control/Abort": {"request_ids": ["mine"]}}


def new_key(name):
    """The key, and its line."""
    said = subprocess.run([BIN / "tandem", "key", name], capture_output=True, text=True, check=True).stdout
    key, line = (text.partition(": ")[2].strip() for text in said.splitlines())
    return key, line


class Keyed(Server):
    def __init__(self, folder):
        self.keys = folder / "keys"
        self.key, self.line = new_key("ours")
        self.keys.write_text(self.line + "\n")
        super().__init__(folder, DEMO_MODEL, "--hybrid=1", f"--api-key-file={self.keys}")
        self.good = {"Authorization": f"Bearer {self.key}"}

    def status(self, key, path="/v1/models"):
        return self.client.get(path, headers={"Authorization": f"Bearer {key}"}).status_code


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    with Keyed(tmp_path_factory.mktemp("keyed")) as server:
        yield server


def bad_credentials(server):
    return [None, "", "Bearer", server.key, f"Basic {server.key}", f"Bearer {server.key[:-1]}",
            f"Bearer {server.key}0", f"Bearer {server.line.split()[1]}", "Bearer ours", f"Bearer {new_key('x')[0]}"]


@pytest.mark.parametrize("arguments, status", [(["--help"], 0), ([], 2), (["-x"], 2), (["two words"], 2), ([""], 2)])
def test_no_key_is_drawn_for_what_is_no_name(arguments, status):
    said = subprocess.run([BIN / "tandem", "key", *arguments], capture_output=True, text=True)
    assert said.returncode == status
    assert not re.search("[0-9a-f]{64}", said.stdout)
    assert said.stdout.startswith("usage: tandem key NAME\n") if status == 0 else said.stderr.startswith("tandem key: ")


def test_every_route_and_method_needs_a_key(keyed):
    for credentials in bad_credentials(keyed):
        headers = {} if credentials is None else {"Authorization": credentials}
        for path in ROUTES:
            for method in METHODS:
                answer = keyed.client.request(method, path, headers=headers, json={"model": "default", "prompt": [1]})
                where = f"{method} {path} with {credentials}"
                assert answer.status_code == 401, where
                assert answer.headers["www-authenticate"] == "Bearer", where
                if method != "HEAD":
                    assert answer.json()["error"]["code"] == "invalid_api_key", where
    both = [("Authorization", f"Bearer {new_key('x')[0]}"), ("Authorization", f"Bearer {keyed.key}")]
    for headers in both, both[::-1]:
        assert keyed.client.get("/v1/models", headers=headers).status_code == 401, "two of them"
    assert keyed.client.get("/health").status_code == keyed.client.get("/ready").status_code == 200


def test_a_body_without_a_key_is_not_awaited(keyed):
    host, port = keyed.http.split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {keyed.http}\r\nContent-Type: application/json\r\n" \
           "Content-Length: 4000000\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        stranger.sendall((head + "\r\n").encode())
        assert stranger.recv(100).startswith(b"HTTP/1.1 401 ")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall((head + f"Authorization: Bearer {keyed.key}\r\nExpect: 100-continue\r\n\r\n").encode())
        assert client.recv(100).startswith(b"HTTP/1.1 100 "), "with one it is"


def test_every_call_needs_a_key(keyed):
    listed = grpcurl(keyed.grpc, "list", flags=["-H", f"authorization: Bearer {keyed.key}"])
    assert {"tandem.v1.Inference", "tandem.v1.Control"} <= set(listed.stdout.split()), listed.stderr
    for credentials in bad_credentials(keyed):
        header = [] if credentials is None else ["-H", f"authorization: {credentials}"]
        refused = grpcurl(keyed.grpc, "list", flags=header)
        assert refused.returncode != 0 and "nauthenticated" in refused.stderr + refused.stdout, (credentials, refused)
        # The descriptors need a key, too; here only the call lacks one.
        for method, request in CALLS.items():
            refused = grpcurl(keyed.grpc, method, request,
                              flags=["-reflect-header", f"authorization: Bearer {keyed.key}",
                                     *(["-rpc-header", header[1]] if header else [])])
            assert refused.returncode != 0 and "Unauthenticated" in refused.stderr, (method, credentials, refused)
    health = grpcurl(keyed.grpc, "grpc.health.v1.Health/Check",
                     flags=["-reflect-header", f"authorization: Bearer {keyed.key}"])
    assert "SERVING" in health.stdout, health.stderr


def test_who_has_a_key_is_served(keyed):
    client = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=keyed.key)
    assert client.completions.create(model="default", prompt=[1, 2, 3], max_tokens=4).usage.completion_tokens == 4
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="sk-another").models.list()
    info = grpcurl(keyed.grpc, "tandem.v1.Control/GetServerInfo", {},
                   flags=["-H", f"authorization: Bearer {keyed.key}"])
    assert json.loads(info.stdout)["ready"], info.stderr
    bench = [BIN / "tandem", "bench", f"--target={keyed.url}", "--requests=2", "--connections=1"]
    without = {name: value for name, value in os.environ.items() if name != "TANDEM_API_KEY"}
    assert subprocess.run(bench, env=without | {"TANDEM_API_KEY": keyed.key}, capture_output=True,
                          timeout=60).returncode == 0
    assert subprocess.run(bench, env=without, capture_output=True, timeout=60).returncode != 0


def test_keys_change_while_streams_run(tmp_path):
    with Keyed(tmp_path) as server:
        other, other_line = new_key("other")
        body = {"model": "default", "prompt": [5, 6, 7], "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body, headers=server.good) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.keys.write_text(other_line + "\n")
            wait_until(lambda: server.status(other) == 200, 30, "the new key is good")
            assert server.status(server.key) == 401, "the old one is not"
            assert [line for line in lines if line][-1] == "data: [DONE]", "what it began goes on"
        server.keys.write_text("nothing that is a key\n")
        wait_until(lambda: "the keys stay as they are" in server.log(), 30, "it says so")
        assert server.status(other) == 200
        assert server.key not in server.log() and other not in server.log()


def test_a_file_without_keys_is_an_error_at_once(tmp_path):
    (tmp_path / "keys").write_text("ann\n")
    ended = subprocess.run([BIN / "tandem-router", f"--model={DEMO_MODEL}", "--workers=127.0.0.1:9", "--http=127.0.0.1:0",
                            "--grpc=127.0.0.1:0", f"--api-key-file={tmp_path / 'keys'}"],
                           capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "--api-key-file" in ended.stderr and "line 1" in ended.stderr


@pytest.mark.parametrize("command", [["tandem-router", f"--model={DEMO_MODEL}", "--workers=127.0.0.1:9"],
                                     ["tandem", "serve", DEMO_MODEL]])
@pytest.mark.parametrize("flags, environment, why", [
    (["--api-key-file="], {}, "--api-key-file: want a file"), (["--api-key-file", ""], {}, "--api-key-file: want a file"),
    ([], {"TANDEM_API_KEY_FILE": ""}, "TANDEM_API_KEY_FILE: want a file"), (["--tls-client-ca="], {}, "--tls-client-ca: want"),
])
def test_an_empty_name_of_a_file_does_not_mean_no_keys(command, flags, environment, why):
    ended = subprocess.run([BIN / command[0], *command[1:], *flags], capture_output=True, text=True, timeout=60,
                           env=os.environ | environment)
    assert ended.returncode == 2 and why in ended.stderr
