// The products of the path "avx2vnni", from their very source, by vpdpbusd in the encoding that
// AVX-512 VNNI has for registers of 256 bits: for machines without the other encoding, AVX-VNNI.

#define kAvx2VnniGemm kEvexGemm
#include "kernels/cpu/gemm_kernels_avx2vnni.cc"
