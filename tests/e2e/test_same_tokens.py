"""The same tokens whatever serves them: hybrid, disaggregated over each transport, cold or cached."""

import concurrent.futures
import random

import pytest

from server import DEMO_MODEL, Server

BLOCK_TOKENS = 16
# Demo model: 8 layers × (K, V) × 2 KV heads × 64 × 2 bytes of bf16 × 16 tokens.
BLOCK_BYTES = 8 * 2 * 2 * 64 * 2 * BLOCK_TOKENS


def requests(seed):
    """Mixed requests whose prompts share no first block: every block must be computed once."""
    rng = random.Random(seed)
    made = []
    for i in range(24):
        length = rng.choice([1, 15, 16, 17, 100, 300, 700])
        prompt = [rng.randrange(16, 4000) for _ in range(length)]
        prompt[0] = 100 + i
        sampling = rng.choice([{"temperature": 0}, {"temperature": 1.0, "seed": i},
                               {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": i, "n": 3}])
        made.append(dict(prompt=prompt, max_tokens=rng.choice([1, 5, 40]), ignore_eos=True, **sampling))
    return made


def answers(server, batch, at_once):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda request: server.complete(**request), batch))


@pytest.fixture(scope="module")
def reference(hybrid):
    batch = requests(seed=1)
    return batch, answers(hybrid, batch, at_once=1)



@pytest.mark.parametrize("transport", ["ucx", "grpc"])
@pytest.mark.parametrize("flags", [
    ["--prefill=1", "--decode=1", "--threads=1"],
    ["--prefill=1", "--decode=2", "--threads=2", "--block-size=32"],
])
def test_disaggregated_equals_hybrid_and_moves_every_block(tmp_path, reference, transport, flags):
    batch, want = reference
    block = 32 if "--block-size=32" in flags else 16
    with Server(tmp_path, DEMO_MODEL, *flags, "--disaggregate=always",
                f"--transport={transport}") as server:
        assert answers(server, batch, at_once=8) == want
        moved = server.total("tandem_kv_transfer_bytes_total", transport=transport)
        # KV of the whole prompt travels, unless its first token is also its last.
        expected = sum(0 if r["max_tokens"] == 1 else -(-len(r["prompt"]) // block) for r in batch)
        assert moved == expected * BLOCK_BYTES * block // 16
        # Again: now prefix caches hold most blocks, on both sides.
        assert answers(server, batch, at_once=8) == want
        server.wait_idle()


def test_a_batch_of_many_equals_one_at_a_time(hybrid, reference):
    batch, want = reference
    assert answers(hybrid, batch, at_once=24) == want
    hybrid.wait_idle()


def test_preempted_sequences_keep_their_tokens(tmp_path, hybrid):
    # Short prompts that all fit and answers that do not: 20 × 20 blocks in a pool of 128.
    batch = [dict(prompt=[100 + i, 17, 18], max_tokens=300, ignore_eos=True, temperature=i % 2, seed=i)
             for i in range(20)]
    want = answers(hybrid, batch, at_once=1)
    with Server(tmp_path, DEMO_MODEL, "--hybrid=1", "--max-model-len=1024",
                "--kv-memory=8MiB") as server:
        assert answers(server, batch, at_once=20) == want
        assert server.total("tandem_preemptions_total") > 0
        server.wait_idle()
