"""The vector paths of the CPU kernels that this machine has (docs/numerics.md), best first: all of one
numerics class."""
import pathlib
import re

# What each needs, by its name in /proc/cpuinfo.
_AVX2 = {"avx2", "fma", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_VNNI = _AVX512 | {"avx512_vnni"}
NEEDS = {"avx512bf16": _VNNI | {"avx512_bf16"}, "avx512vnni": _VNNI, "avx512": _AVX512,
         "avx2vnni": _AVX2 | {"avx_vnni"}, "avx2": _AVX2, "neondot": {"asimd", "asimddp"}, "neon": {"asimd"}}
# What is a class of its own, or a way to the same bits, and not for who asks for paths.
_AMX = NEEDS["avx512bf16"] | {"amx_tile", "amx_int8"}
OTHER_NEEDS = {"avx512bf16-tiles": _AMX, "amx": _AMX | {"amx_bf16"}}


def has(needs):
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return bool(flags) and needs <= set(flags[1].split())


def here():
    return [path for path, needs in NEEDS.items() if has(needs)]
