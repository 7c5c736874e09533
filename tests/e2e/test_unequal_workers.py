"""Workers of one model that hold requests of different lengths."""

from fleet import Router, Worker
from server import wait_until

PROMPT = [21, 22, 23, 24]


def body(max_tokens):
    return {"model": "default", "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True}


def test_a_stream_that_lost_its_worker_waits_for_one_that_holds_all_of_it(tmp_path, hybrid):
    want = hybrid.post("/v1/completions", body(600)).json()["choices"][0]
    assert len(want["token_ids"]) == 600
    large = Worker(tmp_path, "large", "--max-model-len=700")
    small = Worker(tmp_path, "small", "--max-model-len=300")
    with large, small, Router(tmp_path, [large, small]) as router:
        router.wait_alive("hybrid", 2)
        got, finish, killed = [], None, False
        with router.events(body(600)) as events:
            for event in events:
                choice = event["choices"][0]
                got += choice["token_ids"]
                finish = choice["finish_reason"] or finish
                if len(got) >= 100 and not killed:
                    large.kill()
                    killed = True
                    # The small one has room, and serves what fits it.
                    short = router.post("/v1/completions", body(200)).json()["choices"][0]
                    assert short["token_ids"] == want["token_ids"][:200]
                    large.start()
        assert (got, finish) == (want["token_ids"], "length")
        wait_until(lambda: router.total("tandem_stream_resumes_total") >= 1, 10, "the stream has moved")


def test_what_fits_nobody_is_refused_with_the_numbers(tmp_path):
    large = Worker(tmp_path, "large", "--max-model-len=700")
    small = Worker(tmp_path, "small", "--max-model-len=300")
    with large, small, Router(tmp_path, [large, small]) as router:
        router.wait_alive("hybrid", 2)
        answer = router.post("/v1/completions", body(697))
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "701 in all; the context holds 700" in answer.json()["error"]["message"]
        # Without max_tokens, a chat gets what the largest one holds.
        chat = {"model": "default", "messages": [{"role": "user", "content": "And God said"}], "temperature": 0,
                "ignore_eos": True}
        usage = router.post("/v1/chat/completions", chat).json()["usage"]
        assert usage["total_tokens"] == 700
