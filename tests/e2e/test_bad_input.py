"""Bad requests get a clear error that names the field; good ones beside them are undisturbed."""

import http.client
import json
import subprocess

import pytest

from server import BIN, DEMO_MODEL

OK = {"model": "default", "prompt": "And God said", "max_tokens": 4, "temperature": 0}
CHAT = {"model": "default", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


def post_raw(server, path, payload, headers=()):
    """Sends bytes as they are; (status, parsed body)."""
    connection = http.client.HTTPConnection(server.http, timeout=30)
    try:
        connection.request("POST", path, payload, {"Content-Type": "application/json", **dict(headers)})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.fixture(autouse=True)
def others_are_undisturbed(disaggregated):
    yield
    assert disaggregated.post("/v1/completions", OK).status_code == 200


@pytest.mark.parametrize("change, field", [
    ({"temperature": -0.1}, "temperature"), ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_p": 1.01}, "top_p"),
    ({"n": 0}, "n"), ({"n": 129}, "n"), ({"n": 1.5}, "n"), ({"n": 10**30}, "n"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -5}, "max_tokens"),
    ({"stop": ["a"] * 17}, "stop"), ({"stop": ["a" * 1025]}, "stop"), ({"stop": 7}, "stop"),
    ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"),
    ({"seed": 2**63}, "seed"), ({"seed": "one"}, "seed"), ({"stream": "yes"}, "stream"),
    ({"prompt": []}, "prompt"), ({"prompt": [1, "two"]}, "prompt"), ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"), ({"prompt": {"a": 1}}, "prompt"), ({"prompt": None}, "prompt"),
    ({"top_k": -2}, "top_k"), ({"min_tokens": -1}, "min_tokens"), ({"suffix": "end"}, "suffix"),
    ({"presence_penalty": 0.5}, "presence_penalty"), ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 100.5}}, "logit_bias"), ({"logit_bias": {"4096": 1}}, "logit_bias"),
    ({"logit_bias": {str(token): 1 for token in range(301)}}, "logit_bias"), ({"logit_bias": [5]}, "logit_bias"),
    ({"model": 5}, "model"),
])
def test_bad_completion_fields_are_named(disaggregated, change, field):
    status, answer = post_raw(disaggregated, "/v1/completions", json.dumps(OK | change))
    assert status == 400, answer
    assert answer["error"]["param"].split("[")[0] == field and field in answer["error"]["message"], answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("change, field", [
    ({"messages": []}, "messages"), ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages"),
    ({"tools": [{}]}, "tools"), ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"), ({"max_completion_tokens": 0}, "max_completion_tokens"),
])
def test_bad_chat_fields_are_named(disaggregated, change, field):
    status, answer = post_raw(disaggregated, "/v1/chat/completions", json.dumps(CHAT | change))
    assert status == 400, answer
    assert (answer["error"]["param"] or "").startswith(field), answer


@pytest.mark.parametrize("payload", [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "default", "prompt": "x"} trailing',
    b"[" * 100000, b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b'{"model": "default", "prompt": "x", "logit_bias": {"5": NaN}}',
    b'{"model": "default", "prompt": "\\ud800"}', b'{"model": "default", "prompt": "x", "max_tokens": 1e400}',
])
def test_broken_json_is_a_bad_request(disaggregated, payload):
    status, answer = post_raw(disaggregated, "/v1/completions", payload)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error", answer


def test_too_long_a_prompt_says_the_numbers(disaggregated):
    status, answer = post_raw(disaggregated, "/v1/completions",
                              json.dumps(OK | {"prompt": [20] * 8190, "max_tokens": 100}))
    assert status == 400 and "8192" in answer["error"]["message"] and "8190" in answer["error"]["message"]


def test_unknown_model_route_and_method(disaggregated):
    assert post_raw(disaggregated, "/v1/completions", json.dumps(OK | {"model": "gpt"}))[0] == 404
    assert post_raw(disaggregated, "/v1/nothing", "{}")[0] == 404
    assert post_raw(disaggregated, "/v1/models", "{}")[0] == 405


def test_a_body_over_the_limit_is_413(disaggregated):
    assert post_raw(disaggregated, "/v1/completions", b" " * (5 << 20))[0] == 413


def test_neutral_extras_and_nulls_are_accepted(disaggregated):
    extras = {"repetition_penalty": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": None,
              "best_of": 1, "logit_bias": None, "user": "someone", "min_p": 0.0, "stop": None, "seed": None,
              "echo": False, "suffix": None, "unheard_of": {"a": 1}}
    answer = disaggregated.post("/v1/completions", OK | extras)
    assert answer.status_code == 200, answer.text
    answer = disaggregated.post("/v1/chat/completions", CHAT | {
        "tools": None, "tool_choice": None, "response_format": {"type": "text"}, "top_logprobs": None})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("flags, message", [
    (["/no/such/folder"], "/no/such/folder"), ([], "want one model folder"),
    ([str(DEMO_MODEL), "--prefill=2"], "nothing to decode with"),
    ([str(DEMO_MODEL), "--block-size=24"], "24"), ([str(DEMO_MODEL), "--nope"], "--nope"),
    ([str(DEMO_MODEL), "--kv-memory=64KiB"], "kv"), ([str(DEMO_MODEL), "--max-model-len=100000"], "8192"),
    ([str(DEMO_MODEL), "--http=0.0.0.0:1"], "loopback"), ([str(DEMO_MODEL), "--dtype=f64"], "f64"),
])
def test_serve_refuses_bad_flags_with_the_numbers(flags, message):
    ended = subprocess.run([BIN / "tandem", "serve", *flags], capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert message in ended.stderr, ended.stderr
