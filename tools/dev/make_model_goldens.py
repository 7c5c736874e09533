#!/usr/bin/env python3
"""Makes what the model tests compare with: tiny random checkpoints and Transformers' numbers.

usage: make_model_goldens.py tiny OUT_DIR
       make_model_goldens.py demo MODEL_DIR CORPUS_DIR OUT_DIR

tiny: small random checkpoints of every family, each with golden.json (prompts, greedy tokens,
margins) and golden.safetensors (logits of every prompt position), computed in F32. Prompts are
drawn until the two best tokens differ by at least MIN_MARGIN at every step. Folders that are there
are kept.

demo: greedy_f32.json (100 prompts of the corpus, 200 greedy tokens each, and how many of them are
certain: up to the first step with a margin below MIN_MARGIN) and held_out.json (windows of text
that the model was not trained on, with the figures of Transformers' own BF16 against its F32).

Needs torch, transformers and tokenizers; the same seeds give the same files.
"""

import argparse
import json
import pathlib
import random

import usage

if __name__ == "__main__":
    usage.read(__doc__, [], most=3)  # Without torch, too.

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

MIN_MARGIN = 1e-4
PROMPT_TOKENS = (1, 7, 24)
TINY_NEW_TOKENS = 24
DEMO_PROMPT_TOKENS = (8, 24, 40, 64)
DEMO_PROMPTS_EACH = 25
DEMO_NEW_TOKENS = 200
HELD_OUT_SHARE = 0.02
WINDOW_TOKENS = 512
WINDOWS = {"alice_in_wonderland": 1, "king_james_bible": 5, "tiny_shakespeare": 2}
CLEAR_MARGIN_NATS = 0.1


def llama_like(model, config, **options):
    base = dict(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=2,
    )
    return model, config(**{**base, **options})


def llama(**options):
    return llama_like(LlamaForCausalLM, LlamaConfig, **options)


def mistral(**options):
    return llama_like(MistralForCausalLM, MistralConfig, **options)


def qwen2(**options):
    return llama_like(Qwen2ForCausalLM, Qwen2Config, **options)


def qwen3(**options):
    return llama_like(Qwen3ForCausalLM, Qwen3Config, **options)


def gemma2(**options):
    return llama_like(Gemma2ForCausalLM, Gemma2Config, **options)


def gpt2(**options):
    base = dict(
        vocab_size=96,
        n_embd=32,
        n_layer=2,
        n_positions=128,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel, GPT2Config(**{**base, **options})


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def rope_in_old_keys(config):
    """As folders written before rope_parameters existed say it."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = {**rope, "type": kind} if kind != "default" else None
    config["torch_dtype"] = config.pop("dtype")


def saying_no_more_than_needed(config):
    """As folders written by hand or by older versions: what is not there has a default."""
    rope_in_old_keys(config)
    for name in ("rope_scaling", "head_dim", "layer_types", "attention_bias"):
        config.pop(name, None)


def as_gemma2_came(config):
    """As its first folders: the activation under both names, windows by rule."""
    rope_in_old_keys(config)
    config["hidden_act"] = config["hidden_activation"]
    config["cache_implementation"] = "hybrid"
    config.pop("layer_types")


def without_prefix(tensors):
    """As the first GPT-2 checkpoints name their tensors."""
    return {name.removeprefix("transformer."): value for name, value in tensors.items()}


def claiming_tied_embeddings(config):
    """As fine-tuned checkpoints whose output projection was trained on."""
    config["tie_word_embeddings"] = True


def in_mixed_types(tensors):
    kinds = [torch.float32, torch.float16, torch.bfloat16]
    return {
        name: value.to(kinds[i % 3]).contiguous()
        for i, (name, value) in enumerate(sorted(tensors.items()))
    }


def with_llama_buffers(tensors):
    """As checkpoints of before 2023 carry them along."""
    for i in range(2):
        tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.ones(128)
    return tensors


def with_gpt2_buffers(tensors):
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 128, 128, dtype=torch.uint8).tril()
    tensors["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    return tensors


# name: (model class and config, checkpoint type, shards, change of config.json, of tensor names)
TINY = {
    "llama_gqa16_scaled_biased": (
        llama(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            rope_parameters=LLAMA3_ROPE,
            attention_bias=True,
            mlp_bias=True,
        ),
        torch.float32,
        1,
        rope_in_old_keys,
        None,
    ),
    "llama_mha32_tied": (
        llama(
            hidden_size=64,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        ),
        torch.float32,
        1,
        None,
        None,
    ),
    "llama_gqa64_bf16_sharded": (
        llama(num_attention_heads=4, num_key_value_heads=2, head_dim=64, rope_theta=500000.0),
        torch.bfloat16,
        3,
        rope_in_old_keys,
        None,
    ),
    "llama_gqa16_scaled_f16": (
        llama(
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            rope_parameters=LLAMA3_ROPE,
        ),
        torch.float16,
        1,
        None,
        None,
    ),
    "gpt2_heads16": (gpt2(n_head=2), torch.float32, 1, None, None),
    "gpt2_heads32_unprefixed": (
        gpt2(n_embd=64, n_head=2, n_inner=80),
        torch.float32,
        1,
        None,
        without_prefix,
    ),
    "llama_gqa3_head80_own_output": (
        llama(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=80),
        torch.float32,
        1,
        claiming_tied_embeddings,
        None,
    ),
    "llama_gqa7_head112_mixed": (
        llama(hidden_size=56, num_attention_heads=7, num_key_value_heads=1, head_dim=112),
        torch.float32,
        1,
        None,
        in_mixed_types,
    ),
    "llama_mqa_head256_buffers": (
        llama(num_attention_heads=2, num_key_value_heads=1, head_dim=256),
        torch.float32,
        1,
        None,
        with_llama_buffers,
    ),
    "gpt2_head96_buffers": (
        gpt2(n_embd=96, n_head=1, n_layer=1, bos_token_id=50256, eos_token_id=50256),
        torch.float32,
        1,
        None,
        with_gpt2_buffers,
    ),
    # Windows: shorter than prompts of 24 tokens, in all layers or some; one that is null.
    "mistral_gqa16_window5": (
        mistral(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            sliding_window=5,
            max_position_embeddings=2048,
        ),
        torch.float32,
        1,
        None,
        None,
    ),
    "mistral_head20_no_window_bf16": (
        mistral(
            hidden_size=80,
            num_attention_heads=4,
            num_key_value_heads=1,
            sliding_window=None,
            tie_word_embeddings=True,
        ),
        torch.bfloat16,
        1,
        rope_in_old_keys,
        None,
    ),
    "qwen2_gqa16_window_of_last": (
        qwen2(
            num_attention_heads=2,
            num_key_value_heads=1,
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=9,
            max_window_layers=2,
            tie_word_embeddings=True,
        ),
        torch.float32,
        1,
        saying_no_more_than_needed,
        None,
    ),
    "qwen2_gqa8_bf16_sharded": (
        qwen2(num_attention_heads=4, num_key_value_heads=2, rope_theta=1000000.0),
        torch.bfloat16,
        2,
        None,
        None,
    ),
    "qwen3_gqa24_window_of_first": (
        qwen3(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=24,
            use_sliding_window=True,
            sliding_window=7,
            layer_types=["sliding_attention", "full_attention"],
            max_position_embeddings=2048,
        ),
        torch.float32,
        1,
        None,
        None,
    ),
    "qwen3_mqa16_biased_tied_bf16": (
        qwen3(
            num_attention_heads=3,
            num_key_value_heads=1,
            hidden_size=24,
            head_dim=16,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
        torch.bfloat16,
        1,
        None,
        None,
    ),
    # Caps that scores and logits reach; a window of every other layer, by rule or by name.
    "gemma2_gqa16_window7": (
        gemma2(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=7,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0,
            max_position_embeddings=2048,
        ),
        torch.float32,
        1,
        as_gemma2_came,
        None,
    ),
    "gemma2_mqa20_biased_bf16_sharded": (
        gemma2(
            hidden_size=42,
            num_attention_heads=3,
            num_key_value_heads=1,
            num_hidden_layers=3,
            head_dim=20,
            query_pre_attn_scalar=20,
            sliding_window=9,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
            attn_logit_softcapping=None,
            final_logit_softcapping=8.0,
            attention_bias=True,
            tie_word_embeddings=False,
        ),
        torch.bfloat16,
        2,
        None,
        None,
    ),
    "llama_gqa16_gelu": (
        llama(num_attention_heads=4, num_key_value_heads=2, hidden_act="gelu_pytorch_tanh"),
        torch.float32,
        1,
        None,
        None,
    ),
}


def write_checkpoint(out, model, shards, change_config, change_names):
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    size = f"{total // 1000 // shards + 20}KB" if shards > 1 else "1GB"
    model.save_pretrained(out, max_shard_size=size)
    if model.config.eos_token_id < model.config.vocab_size:
        (out / "generation_config.json").write_text(
            json.dumps({"bos_token_id": 1, "eos_token_id": [2, 5]}, indent=1) + "\n"
        )
    config = json.loads((out / "config.json").read_text())
    if change_config:
        change_config(config)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if change_names:
        path = out / "model.safetensors"
        save_file(change_names(load_file(path)), path, metadata={"format": "pt"})


def randomize(model, generator):
    """Biases and norms are 0 and 1 by default, which would hide a tensor in the wrong place."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            noise = torch.randn(parameter.shape, generator=generator) * 0.1
            center = 1.0 if name.endswith("weight") else 0.0
            parameter.data.copy_(noise + center)


@torch.no_grad()
def greedy(model, ids, count):
    """Greedy continuation of equally long prompts with the margin of each step, in logits."""
    cache, tokens, margins = None, [], []
    feed = ids
    for _ in range(count):
        out = model(feed, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        top = out.logits[:, -1].float().topk(2)
        margins.append(top.values[:, 0] - top.values[:, 1])
        feed = top.indices[:, :1]
        tokens.append(feed)
    return torch.cat(tokens, 1), torch.stack(margins, 1)


@torch.no_grad()
def tiny_golden(model, vocab_size, rng):
    prompts, logits = [], {}
    for length in PROMPT_TOKENS:
        while True:
            ids = torch.tensor([[rng.randrange(vocab_size) for _ in range(length)]])
            tokens, margins = greedy(model, ids, TINY_NEW_TOKENS)
            if margins.min() >= MIN_MARGIN:
                break
        logits[f"logits.{len(prompts)}"] = model(ids).logits[0].float().contiguous()
        prompts.append(
            {
                "prompt": ids[0].tolist(),
                "greedy": tokens[0].tolist(),
                "smallest_margin": round(margins.min().item(), 6),
            }
        )
    return prompts, logits


def make_tiny(out):
    for index, (name, recipe) in enumerate(TINY.items()):
        folder = out / name
        if folder.exists():
            continue
        (kind, config), dtype, shards, change_config, change_names = recipe
        torch.manual_seed(index)
        config.dtype = dtype
        model = kind(config).eval()
        randomize(model, torch.Generator().manual_seed(100 + index))
        folder.mkdir(parents=True)
        write_checkpoint(folder, model.to(dtype), shards, change_config, change_names)
        # The stored values computed in F32. Loaded afresh: to() had rounded the rotary frequencies.
        model = kind.from_pretrained(folder, dtype=torch.float32).eval()
        prompts, logits = tiny_golden(model, config.vocab_size, random.Random(index))
        (folder / "golden.json").write_text(json.dumps({"prompts": prompts}) + "\n")
        save_file(logits, folder / "golden.safetensors")
        print(name, [p["smallest_margin"] for p in prompts], flush=True)


def demo_greedy(model, tokenizer, texts):
    rng = random.Random(7)
    names = sorted(texts)
    prompts = []
    for length in DEMO_PROMPT_TOKENS:
        rows = []
        while len(rows) < DEMO_PROMPTS_EACH:
            text = texts[rng.choice(names)]
            start = rng.randrange(len(text) - 4000)
            ids = tokenizer.encode(text[start : start + 2000], add_special_tokens=False).ids
            rows.append(ids[:length])
        tokens, margins = greedy(model, torch.tensor(rows), DEMO_NEW_TOKENS)
        for row, continuation, margin in zip(rows, tokens.tolist(), margins):
            unsure = (margin < MIN_MARGIN).nonzero()
            certain = unsure[0].item() if len(unsure) else DEMO_NEW_TOKENS
            prompts.append({"prompt": row, "greedy": continuation, "certain": certain})
        print(f"prompts of {length} tokens done", flush=True)
    return prompts


@torch.no_grad()
def held_out(model, rounded_model, tokenizer, texts):
    windows = []
    for name, count in WINDOWS.items():
        text = texts[name][int(len(texts[name]) * (1 - HELD_OUT_SHARE)) :]
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        windows += [ids[i * WINDOW_TOKENS : (i + 1) * WINDOW_TOKENS] for i in range(count)]
    ids = torch.tensor(windows)
    exact = model(ids).logits.double().log_softmax(-1)
    rounded = rounded_model(ids).logits.double().log_softmax(-1)
    top = exact.topk(2, -1).values
    clear = top[..., 0] - top[..., 1] >= CLEAR_MARGIN_NATS
    equal = exact.argmax(-1) == rounded.argmax(-1)
    kl = (exact.exp() * (exact - rounded)).sum(-1)
    figures = {
        "mean_kl": kl.mean().item(),
        "share_below_clear_margin": 1 - clear.double().mean().item(),
        "different_at_clear_margin": int((clear & ~equal).sum()),
        "different": int((~equal).sum()),
        "positions": int(equal.numel()),
    }
    return {"windows": windows, "transformers_bf16_against_f32": figures}


def make_demo(model_dir, corpus, out):
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    texts = {p.stem: p.read_text() for p in sorted(corpus.glob("*.txt"))}
    rounded_model = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()
    text = held_out(model, rounded_model, tokenizer, texts)
    (out / "held_out.json").write_text(json.dumps(text) + "\n")
    print(text["transformers_bf16_against_f32"], flush=True)
    prompts = demo_greedy(model, tokenizer, texts)
    (out / "greedy_f32.json").write_text(json.dumps({"prompts": prompts}) + "\n")
    print("certain tokens:", sum(p["certain"] for p in prompts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    tiny = kinds.add_parser("tiny")
    tiny.add_argument("out", type=pathlib.Path)
    demo = kinds.add_parser("demo")
    demo.add_argument("model", type=pathlib.Path)
    demo.add_argument("corpus", type=pathlib.Path)
    demo.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    if args.kind == "tiny":
        make_tiny(args.out)
    else:
        make_demo(args.model, args.corpus, args.out)


if __name__ == "__main__":
    main()
