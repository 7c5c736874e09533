"""`cache_salt` keeps cached prefixes from requests of other salts, over both APIs."""

import json

import pytest

from server import DEMO_MODEL, Server, grpcurl

PROMPT = list(range(100, 500))
CHAT = [{"role": "user", "content": "Of the words that were spoken then, " * 20}]


def over_http(server, salt, prompt=PROMPT):
    """How many tokens of the prompt came from a cache."""
    body = {"model": "default", "prompt": prompt, "max_tokens": 3, "temperature": 0}
    return cached(server, "completions", body, salt)


def over_chat(server, salt):
    return cached(server, "chat/completions",
                  {"model": "default", "messages": CHAT, "max_tokens": 3, "temperature": 0}, salt)


def cached(server, path, body, salt):
    if salt is not None:
        body["cache_salt"] = salt
    answer = server.post(f"/v1/{path}", body)
    assert answer.status_code == 200, answer.text
    details = answer.json()["usage"].get("prompt_tokens_details") or {}
    return details.get("cached_tokens", 0)


def over_grpc(server, salt):
    request = {"model": "default", "token_ids": {"ids": PROMPT[::-1]}, "temperature": 0,
               "stopping": {"max_new_tokens": 3}}
    if salt is not None:
        request["cache_salt"] = salt
    done = grpcurl(server.grpc, "tandem.v1.Inference/Generate", request)
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)
    info = info.get("prompt_info", info.get("promptInfo"))
    return info.get("num_cached_tokens", info.get("numCachedTokens", 0))


@pytest.fixture(scope="module")
def isolated(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("isolated"), DEMO_MODEL, "--hybrid=1",
                "--isolate-cache") as server:
        yield server


# The prompt travels to a prefill worker and back, so three caches and the router's index are asked.
@pytest.mark.parametrize("ask", [over_http, over_chat, over_grpc])
def test_only_the_same_salt_finds_a_prefix(disaggregated, ask):
    server = disaggregated
    assert ask(server, f"a {ask.__name__}") == 0
    assert ask(server, f"a {ask.__name__}") > 0
    assert ask(server, f"b {ask.__name__}") == 0
    assert ask(server, None) == 0
    assert ask(server, None) > 0
    assert ask(server, f"b {ask.__name__}") > 0


@pytest.mark.parametrize("ask", [over_http, over_chat, over_grpc])
def test_an_isolated_cache_serves_whoever_has_a_salt(isolated, ask):
    assert ask(isolated, "mine") == 0
    assert ask(isolated, "mine") > 0
    assert ask(isolated, "theirs") == 0


def test_an_isolated_cache_refuses_who_has_none(isolated):
    for path, body in [("completions", {"prompt": [1, 2]}), ("chat/completions", {"messages": CHAT})]:
        answer = isolated.post(f"/v1/{path}", {"model": "default", **body})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == "cache_salt" and "--isolate-cache" in error["message"]
    refused = grpcurl(isolated.grpc, "tandem.v1.Inference/Generate", {"token_ids": {"ids": [1, 2]}})
    assert "InvalidArgument" in refused.stderr and "cache_salt is missing" in refused.stderr
