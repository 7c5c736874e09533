#!/usr/bin/env python3
"""Compares random tiny checkpoints of every family with Transformers.

usage: fuzz_model.py CHECK_GOLDENS OUT_DIR [--count N] [--seed N] [--device NAME] [--isa NAME] [--family NAME]

CHECK_GOLDENS is the program of that name in build/release/tests. Each checkpoint has a random shape,
rope (in old or new keys), biases, windows, number formats, shards and habits of old files; some ask for
what is not supported. Every one must give Transformers' F32 logits within 1e-3 of a row's largest and its
greedy tokens, or be refused with a message that names a field. Those that do not are kept in OUT_DIR
and listed; the exit status is their number. NAME of a device is cpu, emulated (a GPU that is none) or cuda:N.
Needs torch, transformers and safetensors.
"""

import argparse
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys

import usage

if __name__ == "__main__":
    usage.read(__doc__, ["--count", "--device", "--family", "--isa", "--seed"], most=7)  # Without torch, too.

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

from make_model_goldens import greedy, randomize, rope_in_old_keys

TOLERANCE = 1e-3
MIN_MARGIN = 1e-3
NEW_TOKENS = 12
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
FIELD = re.compile(r"config\.json|tensor|[a-z]+_[a-z_]+|head")


def llama3_rope(rng):
    low = rng.choice([0.5, 1.0, 2.0])
    rope = {
        "rope_type": "llama3",
        "rope_theta": rng.choice([100.0, 10000.0, 500000.0]),
        "factor": rng.choice([1.0, 2.0, 8.0, 32.0]),
        "low_freq_factor": low,
        "high_freq_factor": low * rng.choice([1.5, 4.0]),
        "original_max_position_embeddings": rng.choice([8, 32, 128]),
    }
    return rope


def random_rope(rng):
    if rng.random() < 0.4:
        return llama3_rope(rng)
    if rng.random() < 0.1:  # Not supported.
        kind = rng.choice(["linear", "dynamic"])
        return {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    return {"rope_type": "default", "rope_theta": rng.choice([10.0, 10000.0, 1e6])}


def llama_like(rng):
    kv_heads = rng.choice([1, 1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3, 4, 5, 7, 8])
    head_dim = rng.choice([8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 256])
    hidden = heads * rng.choice([2, 4, 6, 8])
    if rng.random() < 0.3:
        head_dim = hidden // heads
    return dict(
        vocab_size=rng.choice([17, 64, 96, 131]),
        hidden_size=hidden,
        intermediate_size=rng.choice([8, 24, 33, 64, 100]),
        num_hidden_layers=rng.choice([1, 2, 3]),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        hidden_act=rng.choice(["silu"] * 12 + ["swish", "gelu_new", "gelu_pytorch_tanh", "gelu", "relu"]),
        max_position_embeddings=rng.choice([64, 100, 256]),
        rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-3]),
        rope_parameters=random_rope(rng),
        tie_word_embeddings=rng.random() < 0.4,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=rng.choice([2, [2, 3], 100000]),
    )


def random_llama(rng):
    return LlamaForCausalLM, LlamaConfig(
        **llama_like(rng), attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3)


# Prompts and their continuations have up to 61 tokens. With a window of 1 the cache of Transformers
# keeps every key, and its tokens are not those that it gives without a cache.
WINDOWS = [2, 3, 5, 8, 13, 15, 16, 17, 31, 32, 33, 40, 55, 64, 4096]


def random_mistral(rng):
    return MistralForCausalLM, MistralConfig(
        **llama_like(rng), sliding_window=rng.choice([None, None] + WINDOWS))


def qwen_windows(rng, options):
    layers = options["num_hidden_layers"]
    windows = dict(use_sliding_window=rng.random() < 0.7, sliding_window=rng.choice(WINDOWS + [None]),
                   max_window_layers=rng.choice([0, 0, 1, 2, 28]))
    if rng.random() < 0.4 and windows["use_sliding_window"] and windows["sliding_window"]:
        windows["layer_types"] = rng.choices(["full_attention", "sliding_attention"], k=layers)
    return windows


def random_qwen2(rng):
    options = llama_like(rng)
    options.pop("head_dim")
    while options["hidden_size"] // options["num_attention_heads"] % 2:
        options["hidden_size"] += options["num_attention_heads"]
    if rng.random() < 0.5:
        options["head_dim"] = rng.choice([8, 20, 32, 64])
    return Qwen2ForCausalLM, Qwen2Config(**options, **qwen_windows(rng, options))


def random_qwen3(rng):
    options = llama_like(rng)
    return Qwen3ForCausalLM, Qwen3Config(
        **options, **qwen_windows(rng, options), attention_bias=rng.random() < 0.3)


def random_gemma2(rng):
    options = llama_like(rng)
    layers = options["num_hidden_layers"]
    options.pop("hidden_act")
    if rng.random() < 0.3:
        options["layer_types"] = rng.choices(["full_attention", "sliding_attention"], k=layers)
    return Gemma2ForCausalLM, Gemma2Config(
        **options, sliding_window=rng.choice(WINDOWS), attention_bias=rng.random() < 0.3,
        hidden_activation=rng.choice(["gelu_pytorch_tanh"] * 8 + ["gelu_new", "silu", "gelu"]),
        query_pre_attn_scalar=rng.choice([256, options["head_dim"], 7, 100]),
        attn_logit_softcapping=rng.choice([None, 0.5, 5.0, 50.0]),
        final_logit_softcapping=rng.choice([None, 1.0, 7.0, 30.0]))


def random_gpt2(rng):
    heads = rng.choice([1, 2, 3, 5])
    hidden = heads * rng.choice([2, 8, 16, 20, 32, 64, 80])
    return GPT2LMHeadModel, GPT2Config(
        vocab_size=rng.choice([17, 64, 96, 131]),
        n_embd=hidden,
        n_inner=rng.choice([None, None, 24, 50, 96]),
        n_layer=rng.choice([1, 2, 3]),
        n_head=heads,
        n_positions=rng.choice([64, 100, 128]),
        activation_function=rng.choice(
            ["gelu_new"] * 10 + ["gelu_pytorch_tanh"] * 3 + ["gelu", "relu", "silu", "gelu_fast"]
        ),
        layer_norm_epsilon=rng.choice([1e-6, 1e-5, 1e-2]),
        scale_attn_weights=rng.random() > 0.05,
        scale_attn_by_inverse_layer_idx=rng.random() < 0.05,
        reorder_and_upcast_attn=rng.random() < 0.2,
        tie_word_embeddings=rng.random() < 0.8,
        initializer_range=0.25,
    )


def change_config(rng, path, is_llama):
    """Fields left out, written otherwise, or untrue where nothing depends on them."""
    config = json.loads(path.read_text())
    changes = []
    if is_llama and rng.random() < 0.4:
        rope_in_old_keys(config)
        changes.append("old rope keys")
        scaling = config.get("rope_scaling")
        if scaling and rng.random() < 0.5:
            scaling["rope_type"] = scaling.pop("type")
        elif scaling and rng.random() < 0.3:
            scaling["rope_type"] = scaling["type"]
        if scaling is None and rng.random() < 0.3:
            config.pop("rope_scaling")
        if config["rope_theta"] == 10000.0 and rng.random() < 0.5:
            config.pop("rope_theta")
            changes.append("no rope_theta")
    elif is_llama and rng.random() < 0.2:
        config["rope_theta"] = 77.0
        changes.append("another rope_theta beside rope_parameters")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if "original_max_position_embeddings" in rope and rng.random() < 0.3:
        rope.pop("original_max_position_embeddings")
        changes.append("no original_max_position_embeddings")
    if rng.random() < 0.2:
        config.pop("architectures")
        changes.append("no architectures")
    if rng.random() < 0.2:
        config["dtype"] = rng.choice(["float32", "float16", "bfloat16"])
        changes.append("dtype " + config["dtype"])
    kind = config["model_type"]
    if kind not in ("qwen3", "gemma2") and config.get("head_dim", 0) * config.get("num_attention_heads", 0) == \
            config.get("hidden_size"):
        if rng.random() < 0.5:
            config.pop("head_dim")
            changes.append("no head_dim")
    if kind == "llama" and config["num_key_value_heads"] == config["num_attention_heads"]:
        config.pop("num_key_value_heads")
        changes.append("no num_key_value_heads")
    if "layer_types" in config and rng.random() < 0.5:
        config.pop("layer_types")
        changes.append("no layer_types")
    for name, default in [("sliding_window", 4096), ("use_sliding_window", False),
                          ("max_window_layers", 28), ("query_pre_attn_scalar", 256),
                          ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0),
                          ("head_dim", {"qwen3": 128, "gemma2": 256}.get(kind, 0))]:
        if name in config and config[name] == default and rng.random() < 0.5:
            config.pop(name)
            changes.append("no " + name)
    for name, default in [("rms_norm_eps", 1e-6), ("layer_norm_epsilon", 1e-5), ("n_inner", None),
                          ("activation_function", "gelu_new"), ("hidden_act", "silu"),
                          ("attention_bias", False), ("mlp_bias", False),
                          ("hidden_activation", "gelu_pytorch_tanh"),
                          ("tie_word_embeddings", not is_llama or kind == "gemma2")]:
        if name in config and config[name] == default and rng.random() < 0.3:
            config.pop(name)
            changes.append("no " + name)
    path.write_text(json.dumps(config))
    return changes


def change_tensors(rng, folder, is_llama):
    """Number formats, names and buffers as old or converted files have them."""
    changes = []
    paths = sorted(folder.glob("*.safetensors"))
    kind = rng.choice(["same", "same", "F16", "BF16", "mixed"])
    unprefixed = not is_llama and rng.random() < 0.3
    own_output = len(paths) == 1 and rng.random() < 0.15
    for path in paths:
        tensors = load_file(path)
        if own_output and "lm_head.weight" not in tensors:
            source = tensors["model.embed_tokens.weight" if is_llama else "transformer.wte.weight"]
            tensors["lm_head.weight"] = source.flip(0).contiguous()
            changes.append("lm_head of its own")
        if kind != "same":
            for name, value in tensors.items():
                to = rng.choice(list(TYPES)) if kind == "mixed" else kind
                tensors[name] = value.to(TYPES[to]).contiguous()
        if len(paths) == 1 and rng.random() < 0.2:
            if is_llama:
                tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
            else:
                tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.uint8)
            changes.append("buffers")
        if unprefixed and len(paths) == 1:
            tensors = {n.removeprefix("transformer."): v for n, v in tensors.items()}
            changes.append("no prefix")
        save_file(tensors, path, metadata={"format": "pt"})
    return changes + [kind]


@torch.no_grad()
def write_golden(folder, model, rng):
    vocab, prompts, logits = model.config.vocab_size, [], {}
    for length in (1, rng.randrange(2, 17), rng.randrange(17, 50)):
        ids = torch.tensor([[rng.randrange(vocab) for _ in range(length)]])
        tokens, margins = greedy(model, ids, NEW_TOKENS)
        unsure = (margins[0] < MIN_MARGIN).nonzero()
        certain = int(unsure[0]) if len(unsure) else NEW_TOKENS
        logits[f"logits.{len(prompts)}"] = model(ids).logits[0].float().contiguous()
        prompts.append({"prompt": ids[0].tolist(), "greedy": tokens[0].tolist()[:certain]})
    (folder / "golden.json").write_text(json.dumps({"prompts": prompts}))
    save_file(logits, folder / "golden.safetensors")


FAMILIES = {"llama": random_llama, "mistral": random_mistral, "qwen2": random_qwen2,
            "qwen3": random_qwen3, "gemma2": random_gemma2, "gpt2": random_gpt2}


def make_case(folder, seed, family):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    family = family or rng.choices(list(FAMILIES), [4, 3, 3, 4, 5, 3])[0]
    is_llama = family != "gpt2"  # Or has its tensors.
    kind, config = FAMILIES[family](rng)
    model = kind(config).eval()
    randomize(model, torch.Generator().manual_seed(seed))
    size = sum(p.numel() * 4 for p in model.parameters())
    shards = rng.choice([1, 1, 1, 2, 4])
    model.save_pretrained(folder, max_shard_size=f"{size // shards // 1000 + 2}KB")
    changes = change_config(rng, folder / "config.json", is_llama)
    changes += change_tensors(rng, folder, is_llama)
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    write_golden(folder, model, rng)
    return [family] + changes


def judge(verdict, detail):
    """What is wrong, or nothing."""
    if verdict == "refused":
        return None if FIELD.search(detail) else "a refusal that names no field"
    worst, wrong_texts, _ = detail.split()
    if not float(worst) <= TOLERANCE:
        return "other logits"
    return "other tokens" if int(wrong_texts) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("check_goldens")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--family", choices=FAMILIES)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    counts, wrong, worst = {"compared": 0, "refused": 0, "not made": 0}, 0, 0.0
    for seed in range(args.seed, args.seed + args.count):
        folder = args.out / str(seed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            changes = make_case(folder, seed, args.family)
        except Exception as error:  # Transformers refuses it, too: nothing to compare with.
            counts["not made"] += 1
            print(f"{seed}: not made: {type(error).__name__}: {str(error)[:150]}", flush=True)
            shutil.rmtree(folder)
            continue
        run = subprocess.run([args.check_goldens, args.device, args.isa, folder], capture_output=True, text=True)
        _, verdict, detail = (run.stdout.split(" ", 2) + ["", "died", str(run.returncode)])[:3]
        complaint = judge(verdict, detail) if verdict in counts else f"the program died: {run.stderr}"
        counts[verdict] = counts.get(verdict, 0) + 1
        if verdict == "compared":
            worst = max(worst, float(detail.split()[0]))
        if verdict == "refused" or complaint:
            print(f"{seed}: {verdict} {detail.strip()} {changes} {complaint or ''}", flush=True)
        if complaint:
            wrong += 1
        else:
            shutil.rmtree(folder)
    print(f"{counts}, worst difference {worst:.1e}, {wrong} wrong")
    sys.exit(min(wrong, 100))


if __name__ == "__main__":
    main()
