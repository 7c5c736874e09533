"""CTranslate2's forward pass of a Llama shape in 8 bits: a peer of tools/dev/bench_engine.

usage: ctranslate2_llama.py FOLDER int8 THREADS

Random weights of the shape in FOLDER/config.json, written once.
"""
import sys

import ctranslate2
import numpy
from ctranslate2.specs import common_spec, transformer_spec
from serve import model_path, read_config, serve


def write(config, dtype, folder):
    hidden, ffn, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv = hidden // heads * config["num_key_value_heads"]
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"], heads, activation=common_spec.Activation.SWISH, pre_norm=True, ffn_glu=True,
        rms_norm=True, rotary_dim=0, rotary_interleave=False, rotary_base=config["rope_theta"],
        num_heads_kv=config["num_key_value_heads"])
    random = numpy.random.default_rng(1)

    def matrix(rows, columns):
        # Numbers do not decide how long it takes: the same ones again and again are made in no time.
        return numpy.resize(random.standard_normal(1 << 16, dtype=numpy.float32) * 0.02, (rows, columns))

    def norm(layer_norm):
        layer_norm.gamma = numpy.ones(hidden, numpy.float32)

    decoder = spec.decoder
    decoder.embeddings.weight = matrix(config["vocab_size"], hidden)
    decoder.projection.weight = matrix(config["vocab_size"], hidden)
    decoder.scale_embeddings = False
    norm(decoder.layer_norm)
    for layer in decoder.layer:
        norm(layer.self_attention.layer_norm)
        norm(layer.ffn.layer_norm)
        layer.self_attention.linear[0].weight = matrix(hidden + 2 * kv, hidden)
        layer.self_attention.linear[1].weight = matrix(hidden, hidden)
        layer.ffn.linear_0.weight = matrix(ffn, hidden)
        layer.ffn.linear_0_noact.weight = matrix(ffn, hidden)
        layer.ffn.linear_1.weight = matrix(hidden, ffn)
    spec.register_vocabulary([f"t{i}" for i in range(config["vocab_size"])])
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "t1", "t2", "t0"
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    spec.validate()
    spec.optimize(quantization=dtype)
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))


def main(folder, dtype, threads):
    config = read_config(folder)
    path = model_path(config, f"ctranslate2-{dtype}")
    if not (path / "vocabulary.json").exists():  # Written last.
        write(config, dtype, path)
    generator = ctranslate2.Generator(str(path), device="cpu", compute_type=dtype, intra_threads=threads)

    def prefill(tokens):
        # All but the prompt's last token at once, and a step.
        prompt = [f"t{16 + i * 7 % 1000}" for i in range(tokens)]
        generator.generate_batch([prompt], max_length=1, include_prompt_in_result=False)

    serve(f"CTranslate2 {ctranslate2.__version__} {generator.compute_type}",
          {"prefill_512": lambda: prefill(512), "prefill_2048": lambda: prefill(2048)})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
