"""grpcurl (through reflection), ghz and a C++ client against the public gRPC API."""

import json
import subprocess

import pytest

from server import BIN, ROOT, TOOLS, grpcurl


def token_ids(message):
    """Of the only output of a response; grpcurl spells fields by the descriptor it was given."""
    output = message.get("outputs", [{}])[0]
    return output.get("token_ids", output.get("tokenIds", []))


def test_reflection_lists_the_services(disaggregated):
    listed = grpcurl(disaggregated.grpc, "list").stdout.split()
    assert {"tandem.v1.Inference", "tandem.v1.Control", "grpc.health.v1.Health"} <= set(listed)
    health = grpcurl(disaggregated.grpc, "grpc.health.v1.Health/Check")
    assert json.loads(health.stdout) == {"status": "SERVING"}, health.stderr


def test_generate_equals_the_http_answer(disaggregated):
    prompt = [11, 300, 42, 900, 77]
    want = disaggregated.complete(prompt, max_tokens=12, temperature=0)[0]
    request = {"model": "default", "token_ids": {"ids": prompt}, "temperature": 0,
               "stopping": {"max_new_tokens": 12}, "response": {"output_token_ids": True}}
    whole = grpcurl(disaggregated.grpc, "tandem.v1.Inference/Generate", request)
    assert token_ids(json.loads(whole.stdout)) == want, whole.stderr
    stream = grpcurl(disaggregated.grpc, "tandem.v1.Inference/GenerateStream", request)
    decoder, rest, ids = json.JSONDecoder(), stream.stdout.strip(), []
    while rest:
        message, end = decoder.raw_decode(rest)
        ids += token_ids(message)
        rest = rest[end:].strip()
    assert ids == want, stream.stderr


def test_a_bias_gives_the_tokens_that_it_gives_over_http(disaggregated):
    prompt, bias = [11, 300, 42, 900, 77], {"50": 12.5, "51": 12.5, "300": -100}
    want = disaggregated.complete(prompt, max_tokens=12, temperature=1.0, seed=8, logit_bias=bias)[0]
    request = {"model": "default", "token_ids": {"ids": prompt}, "temperature": 1.0, "sampling": {"seed": 8},
               "stopping": {"max_new_tokens": 12}, "response": {"output_token_ids": True}, "logit_bias": bias}
    whole = grpcurl(disaggregated.grpc, "tandem.v1.Inference/Generate", request)
    assert token_ids(json.loads(whole.stdout)) == want, whole.stderr
    free = grpcurl(disaggregated.grpc, "tandem.v1.Inference/Generate", request | {"logit_bias": {}})
    assert token_ids(json.loads(free.stdout)) != want


@pytest.mark.parametrize("change, code", [
    ({"temperature": 9}, "InvalidArgument"), ({"model": "nobody"}, "NotFound"),
    ({"token_ids": {"ids": [99999]}}, "InvalidArgument"), ({"token_ids": {"ids": []}}, "InvalidArgument"),
    ({"sampling": {"num_sequences": 129}}, "InvalidArgument"), ({"sampling": {"top_p": 2}}, "InvalidArgument"),
    ({"stopping": {"max_new_tokens": 9000}}, "InvalidArgument"),
    ({"logit_bias": {"4096": 1}}, "InvalidArgument"), ({"logit_bias": {"5": "NaN"}}, "InvalidArgument"),
])
def test_bad_requests_have_real_status_codes(disaggregated, change, code):
    request = {"model": "default", "token_ids": {"ids": [20, 21]}, "stopping": {"max_new_tokens": 2}} | change
    ended = grpcurl(disaggregated.grpc, "tandem.v1.Inference/Generate", request)
    assert ended.returncode != 0 and code in ended.stdout + ended.stderr, ended.stderr


def test_ghz_runs_without_an_error(disaggregated):
    request = {"model": "default", "token_ids": {"ids": [20, 21, 22]}, "stopping": {"max_new_tokens": 8}}
    ended = subprocess.run(
        [TOOLS / "ghz", "--insecure", "--call", "tandem.v1.Inference/Generate", "-n", "100", "-c", "8",
         "--proto", ROOT / "proto/tandem/v1/inference.proto", "--import-paths", ROOT / "proto",
         "-d", json.dumps(request), "-O", "json", disaggregated.grpc],
        capture_output=True, text=True, timeout=120)
    report = json.loads(ended.stdout)
    assert report["statusCodeDistribution"] == {"OK": 100}, ended.stderr


def test_the_cpp_example_streams_the_same_text(disaggregated):
    want = disaggregated.post("/v1/completions", {
        "model": "default", "prompt": "And God said", "max_tokens": 16, "temperature": 0}).json()
    ended = subprocess.run([BIN / "generate_example", disaggregated.grpc, "And God said"],
                           capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.rstrip("\n") == want["choices"][0]["text"].rstrip("\n")
