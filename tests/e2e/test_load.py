"""Many mixed requests, and clients that go away."""

import asyncio
import json
import random

import httpx


def body_of(rng, prompt_tokens):
    kind = rng.choice(["greedy", "seeded", "many", "stop", "logprobs", "text"])
    body = {"model": "default", "max_tokens": rng.choice([1, 4, 16, 48]), "stream": rng.random() < 0.7,
            "prompt": [rng.randrange(16, 4000) for _ in range(rng.choice(prompt_tokens))]}
    return body | {
        "greedy": {"temperature": 0},
        "seeded": {"temperature": 1.0, "seed": rng.randrange(1000)},
        "many": {"temperature": 1.0, "seed": 1, "n": 3},
        "stop": {"temperature": 1.0, "seed": 2, "stop": ["the", "and"]},
        "logprobs": {"temperature": 0, "logprobs": 3},
        "text": {"prompt": "And the LORD said unto him", "temperature": 0.7, "seed": 3},
    }[kind]


async def run(server, requests, connections, seed):
    """Sends them all; returns what went wrong."""
    rng = random.Random(seed)
    bodies = [body_of(rng, [1, 20, 120, 400]) for _ in range(requests)]
    errors = []
    gate = asyncio.Semaphore(connections)

    async with httpx.AsyncClient(verify=server.tls, timeout=300, limits=httpx.Limits(max_connections=connections)) as client:
        async def one(body):
            async with gate:
                response = await client.post(f"{server.url}/v1/completions", json=body)
            if response.status_code != 200:
                errors.append(response.text)
            elif body["stream"] and not response.text.rstrip().endswith("data: [DONE]"):
                errors.append(response.text[-300:])
            elif not body["stream"] and len(response.json()["choices"]) != body.get("n", 1):
                errors.append(response.text[:300])
        await asyncio.gather(*(one(body) for body in bodies))
    return errors


def test_mixed_requests_at_64_connections_have_no_error(disaggregated, full):
    assert asyncio.run(run(disaggregated, 2000 if full else 400, connections=64, seed=77)) == []
    disaggregated.wait_idle()


async def disconnect(server, times, seed):
    """Opens streams and drops each one at a random point."""
    rng = random.Random(seed)
    gate = asyncio.Semaphore(16)

    async with httpx.AsyncClient(verify=server.tls, timeout=300) as client:
        async def one():
            body = {"model": "default", "max_tokens": 2000, "stream": True, "ignore_eos": True,
                    "n": rng.choice([1, 1, 3]),
                    "prompt": [rng.randrange(16, 4000) for _ in range(rng.choice([20, 300, 1500]))]}
            events = rng.choice([0, 0, 1, 3, 20])
            async with gate, client.stream("POST", f"{server.url}/v1/completions", json=body) as response:
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        events -= 1
                        assert "error" not in json.loads(line[6:])
                    if events < 0:
                        break
        await asyncio.gather(*(one() for _ in range(times)))


def test_blocks_are_back_within_a_second_of_the_last_disconnect(disaggregated, full):
    before = disaggregated.total("tandem_requests_total", outcome="cancelled")
    times = 500 if full else 80
    asyncio.run(disconnect(disaggregated, times, seed=78))
    disaggregated.wait_idle(seconds=1)
    assert disaggregated.total("tandem_requests_total", outcome="cancelled") == before + times
