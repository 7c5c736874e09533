// The products of the path "avx2vnni", from their very source, by vpdpbusd in the encoding that
// AVX-512 VNNI has for registers of 256 bits: for machines without the other encoding, AVX-VNNI.

#define kAvx2VnniGemmInt8F32 kEvexGemmInt8F32
#define kAvx2VnniGemmInt8Bf16 kEvexGemmInt8Bf16
#define kAvx2VnniGemmInt4F32 kEvexGemmInt4F32
#define kAvx2VnniGemmInt4Bf16 kEvexGemmInt4Bf16
#include "kernels/cpu/gemm_kernels_avx2vnni.cc"
