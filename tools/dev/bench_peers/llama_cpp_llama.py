"""llama.cpp's forward pass of a Llama shape: a peer of tools/dev/bench_engine.

usage: llama_cpp_llama.py FOLDER bf16|q8_0|q4_0 THREADS

Random weights of the shape in FOLDER/config.json, written once. The package is built where it is installed,
for the machine's own instructions.
"""
import ctypes
import sys

import gguf
import llama_cpp
import numpy
from serve import CONTEXT, DECODE_STEPS, model_path, read_config, serve


def write(config, dtype, path):
    hidden, ffn, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv = hidden // heads * config["num_key_value_heads"]
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    random = numpy.random.default_rng(1)
    some = {}

    def matrix(name, rows, columns):
        # Numbers do not decide how long it takes: the same ones again and again are made in no time.
        if columns not in some:
            numbers = random.standard_normal((64, columns), dtype=numpy.float32) * 0.02
            some[columns] = gguf.quants.quantize(numbers, kind)
        writer.add_tensor(f"{name}.weight", numpy.resize(some[columns], (rows, some[columns].shape[1])),
                          raw_dtype=kind)

    def norm(name):
        writer.add_tensor(f"{name}.weight", numpy.ones(hidden, numpy.float32))

    matrix("token_embd", config["vocab_size"], hidden)
    matrix("output", config["vocab_size"], hidden)
    norm("output_norm")
    for i in range(config["num_hidden_layers"]):
        layer = f"blk.{i}"
        norm(f"{layer}.attn_norm")
        norm(f"{layer}.ffn_norm")
        matrix(f"{layer}.attn_q", hidden, hidden)
        matrix(f"{layer}.attn_k", kv, hidden)
        matrix(f"{layer}.attn_v", kv, hidden)
        matrix(f"{layer}.attn_output", hidden, hidden)
        matrix(f"{layer}.ffn_gate", ffn, hidden)
        matrix(f"{layer}.ffn_up", ffn, hidden)
        matrix(f"{layer}.ffn_down", hidden, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


class Context:
    """Sequences that have CONTEXT tokens behind them between any two calls."""

    def __init__(self, model, threads, sequences, tokens):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * tokens
        params.n_batch, params.n_seq_max = max(tokens, sequences * CONTEXT), sequences
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(model, params)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        self.sequences = sequences
        self.run(0, CONTEXT)

    def run(self, first, count):
        """Tokens from `first` on of each sequence, and the logits of its last one."""
        batch = self.batch
        batch.n_tokens = self.sequences * count
        for row in range(batch.n_tokens):
            sequence, i = divmod(row, count)
            batch.token[row] = 16 + (first + i) * 7 % 1000
            batch.pos[row] = first + i
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = i == count - 1
        if llama_cpp.llama_decode(self.context, batch) != 0:
            sys.exit("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def prefill(self, tokens):
        llama_cpp.llama_memory_clear(self.memory, False)
        self.run(0, tokens)
        self.forget()

    def decode(self):
        for i in range(DECODE_STEPS):
            self.run(CONTEXT + i, 1)
        self.forget()

    def forget(self):
        for sequence in range(self.sequences):
            llama_cpp.llama_memory_seq_rm(self.memory, sequence, CONTEXT, -1)


@llama_cpp.llama_log_callback
def print_errors(level, text, _):
    if level == 4:
        print(text.decode(), end="", file=sys.stderr)


def main(folder, dtype, threads):
    llama_cpp.llama_log_set(print_errors, ctypes.c_void_p(0))
    config = read_config(folder)
    path = model_path(config, f"{dtype}.gguf")
    if not path.exists():
        write(config, dtype, path)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    alone, batch = Context(model, threads, 1, 2048), Context(model, threads, 16, 256)
    serve(f"llama.cpp (llama-cpp-python {llama_cpp.__version__}) {dtype}",
          {"prefill_512": lambda: alone.prefill(512), "prefill_2048": lambda: alone.prefill(2048),
           "decode_1": alone.decode, "decode_16": batch.decode})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
