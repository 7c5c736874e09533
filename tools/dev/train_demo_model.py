#!/usr/bin/env python3
"""Trains the demo model: a byte-level BPE tokenizer and a small Llama model on public-domain text.

usage: train_demo_model.py CORPUS_DIR OUT_DIR [--minutes M] [--threads N] [--seed S]

CORPUS_DIR holds *.txt. Half of the training sequences are plain text; the other half are chat
turns in which the user gives the start of a passage and the assistant continues it, so that the
chat endpoint answers sensibly and stops by itself. The last 2 % of each text are held out; their
perplexity is measured at the end on the weights as saved.

Writes OUT_DIR/{config.json, generation_config.json, model.safetensors (bf16), tokenizer.json,
tokenizer_config.json, chat_template.jinja, training_log.json}. Needs torch, transformers and
tokenizers. The same seed, machine and number of steps give the same weights.
"""

import argparse
import json
import math
import pathlib
import random
import time

import usage

if __name__ == "__main__":
    usage.read(__doc__, ["--minutes", "--seed", "--threads"], most=6)  # Without torch, too.

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BEGIN, END, USER, ASSISTANT = SPECIALS = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "<|begin|>{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% elif message['role'] == 'user' %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCAB_SIZE = 4096
TRAIN_TOKENS = 512  # tokens of a training sequence
CONTEXT_TOKENS = 8192  # what the configuration allows; only TRAIN_TOKENS were ever trained
BATCH = 16
PEAK_LEARNING_RATE = 3e-3
WARMUP_STEPS = 40
HELD_OUT_SHARE = 0.02


def passages(text):
    """Paragraph-like pieces: chapters of the Bible, speeches of a scene, paragraphs of prose."""
    return [p.strip() for p in text.split("\n\n") if len(p.strip()) > 40]


def train_tokenizer(texts, out):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, model_max_length=CONTEXT_TOKENS
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(out)
    return tokenizer


class Batches:
    """Draws training sequences: plain text and chat turns, one half each."""

    def __init__(self, train, tokenizer, rng):
        encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.rng = rng
        self.special = {name: tokenizer.token_to_id(name) for name in SPECIALS}
        self.streams = [encode(text) for text in train.values()]
        self.pieces = [encode(p) for text in train.values() for p in passages(text)]
        longest = max(train.values(), key=len)
        self.lines = [encode(line.strip()) for line in longest.split("\n") if len(line) > 60]

    def plain(self):
        stream = self.rng.choices(self.streams, weights=[len(s) for s in self.streams])[0]
        start = self.rng.randrange(max(1, len(stream) - TRAIN_TOKENS))
        return stream[start : start + TRAIN_TOKENS]

    def chat(self):
        rng, special, ids = self.rng, self.special, []
        while len(ids) < TRAIN_TOKENS:
            piece = rng.choice(self.pieces if rng.random() < 0.6 else self.lines)
            if len(piece) < 24:
                continue
            start = 0 if rng.random() < 0.7 else rng.randrange(len(piece) - 20)
            cut = start + rng.randint(3, min(24, len(piece) - start - 8))
            end = min(len(piece), cut + rng.choice([48, 96, 200]))
            ids += [special[BEGIN], special[USER], *piece[start:cut]]
            ids += [special[ASSISTANT], *piece[cut:end], special[END]]
        return ids[:TRAIN_TOKENS]

    def next(self):
        rows = [self.plain() if self.rng.random() < 0.5 else self.chat() for _ in range(BATCH)]
        return torch.tensor(rows)


def make_model(special):
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=special[BEGIN],
        eos_token_id=special[END],
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.float32)


def train(model, batches, minutes):
    """Trains for `minutes` of wall clock, cosine schedule over that time. Returns the log."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=PEAK_LEARNING_RATE,
        betas=(0.9, 0.95),
    )
    model.train()
    start, log, step, tokens = time.time(), [], 0, 0
    while (done := (time.time() - start) / (minutes * 60)) < 1:
        warmup = min(1, (step + 1) / WARMUP_STEPS)
        rate = PEAK_LEARNING_RATE * warmup * (0.05 + 0.475 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids = batches.next()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].float().reshape(-1, VOCAB_SIZE), ids[:, 1:].reshape(-1)
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, tokens = step + 1, tokens + ids.numel()
        if step % 25 == 0:
            seconds = round(time.time() - start)
            log.append(
                {"step": step, "tokens": tokens, "loss": round(loss.item(), 4), "seconds": seconds}
            )
            print(log[-1], flush=True)
    return {"steps": step, "tokens": tokens, "log": log}


@torch.no_grad()
def held_out_quality(model, tokenizer, text):
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)
    nats = count = 0
    for start in range(0, len(ids) - 2, TRAIN_TOKENS):
        window = ids[start : start + TRAIN_TOKENS + 1]
        logits = model(window[None, :-1]).logits[0]
        nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
        count += len(window) - 1
    return {
        "perplexity_per_token": round(math.exp(nats / count), 3),
        "bits_per_byte": round(nats / math.log(2) / len(text.encode()), 4),
        "tokens": count,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    texts = {p.stem: p.read_text() for p in sorted(args.corpus.glob("*.txt"))}
    cut = lambda text: int(len(text) * (1 - HELD_OUT_SHARE))
    train_texts = {name: text[: cut(text)] for name, text in texts.items()}
    held_out = {name: text[cut(text) :] for name, text in texts.items()}

    tokenizer = train_tokenizer(train_texts.values(), args.out)
    batches = Batches(train_texts, tokenizer, random.Random(args.seed))
    model = make_model(batches.special)
    facts = train(model, batches, args.minutes)

    model.eval().to(torch.bfloat16).to(torch.float32)  # Measures what is saved.
    quality = {k: held_out_quality(model, tokenizer, text) for k, text in held_out.items()}
    model.to(torch.bfloat16).save_pretrained(args.out)
    facts = {
        "seed": args.seed,
        "minutes": args.minutes,
        "steps": facts["steps"],
        "tokens": facts["tokens"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
        "held_out": quality,
        "log": facts["log"],
    }
    (args.out / "training_log.json").write_text(json.dumps(facts, indent=1))
    print(json.dumps(quality, indent=1))


if __name__ == "__main__":
    main()
