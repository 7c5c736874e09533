"""PyTorch's forward pass of a Llama shape: a peer of tools/dev/bench_engine.

usage: torch_llama.py FOLDER bf16|f32 THREADS

Random weights of the shape in FOLDER/config.json.
"""
import sys

import torch
from serve import CONTEXT, DECODE_STEPS, serve
from transformers import AutoConfig, AutoModelForCausalLM


@torch.no_grad()
def main(folder, dtype, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(folder)
    # Named, or it is what the folder's config says.
    model = AutoModelForCausalLM.from_config(config, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype],
                                             attn_implementation="sdpa").eval()
    ids = torch.randint(16, 1000, (16, 2048))
    contexts = {}

    def prefill(tokens):
        model(ids[:1, :tokens], use_cache=True, logits_to_keep=1)

    def decode(batch):
        if batch not in contexts:
            contexts[batch] = model(ids[:batch, :CONTEXT], use_cache=True, logits_to_keep=1).past_key_values
        past = contexts[batch]
        for _ in range(DECODE_STEPS):
            past = model(ids[:batch, :1], past_key_values=past, use_cache=True).past_key_values
        past.crop(-DECODE_STEPS)

    serve(f"torch {torch.__version__} {dtype}",
          {"prefill_512": lambda: prefill(512), "prefill_2048": lambda: prefill(2048),
           "decode_1": lambda: decode(1), "decode_16": lambda: decode(16)})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
