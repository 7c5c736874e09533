"""PyTorch's forward pass of a Llama shape: a peer of tools/dev/bench_engine, in its protocol.

usage: torch_llama.py FOLDER DTYPE THREADS

Random weights of the shape in FOLDER/config.json. Prints one JSON line, then answers every row's name on a
line of standard input with the seconds that it took. Needs torch and transformers.
"""
import json
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

CONTEXT, DECODE_STEPS = 128, 8


@torch.no_grad()
def main(folder, dtype, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(folder)
    # Named, or it is what the folder's config says.
    model = AutoModelForCausalLM.from_config(config, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype],
                                             attn_implementation="sdpa").eval()
    ids = torch.randint(16, 1000, (1, 512))
    prompt = model(ids[:, :CONTEXT], use_cache=True, logits_to_keep=1)

    def prefill():
        model(ids, use_cache=True, logits_to_keep=1)

    def decode():
        past = prompt.past_key_values
        for _ in range(DECODE_STEPS):
            past = model(ids[:, :1], past_key_values=past, use_cache=True).past_key_values
        past.crop(-DECODE_STEPS)

    rows = {f"prefill_512_{dtype}": prefill, f"decode_1_{dtype}": decode}
    print(json.dumps({"peer": f"torch {torch.__version__} {dtype}",
                      "capability": torch.backends.cpu.get_cpu_capability(), "rows": list(rows)}), flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        rows[line.strip()]()
        print(f"{time.perf_counter() - begin:.6f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
