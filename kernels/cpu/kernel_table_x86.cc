#include <cpuid.h>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {
namespace {

bool MachineHasAvx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}

// By cpuid, as Clang 14 knows no name of it for __builtin_cpu_supports.
bool MachineHasAvx2Vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAvxVnni = 1u << 4;
  return MachineHasAvx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & kAvxVnni) != 0;
}

bool MachineHasAvx512() {
  return MachineHasAvx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}

bool MachineHasAvx512Vnni() {
  return MachineHasAvx512() && __builtin_cpu_supports("avx512vnni") != 0;
}

bool MachineHasAvx512Bf16() {
  return MachineHasAvx512Vnni() && __builtin_cpu_supports("avx512bf16") != 0;
}

const KernelTable* Avx2Kernels() {
  if (!MachineHasAvx2()) return nullptr;
  static const KernelTable table{.isa = "avx2",
                                 .rows = kAvx2Rows,
                                 .gemm = {kAvx2GemmF32, kAvx2GemmBf16, kAvx2GemmInt8F32,
                                          kAvx2GemmInt8Bf16, kAvx2GemmInt4F32, kAvx2GemmInt4Bf16},
                                 .f32_attention = kAvx2AttentionF32,
                                 .bf16_attention = kAvx2AttentionBf16};
  return &table;
}

const KernelTable* Avx2VnniKernels() {
  if (!MachineHasAvx2Vnni()) return nullptr;
  static const KernelTable table{
      .isa = "avx2vnni",
      .rows = kAvx2Rows,
      .gemm = {kAvx2GemmF32, kAvx2GemmBf16, kAvx2VnniGemmInt8F32, kAvx2VnniGemmInt8Bf16,
               kAvx2VnniGemmInt4F32, kAvx2VnniGemmInt4Bf16},
      .f32_attention = kAvx2AttentionF32,
      .bf16_attention = kAvx2AttentionBf16};
  return &table;
}

const KernelTable* Avx512Kernels() {
  if (!MachineHasAvx512()) return nullptr;
  static const KernelTable table{
      .isa = "avx512",
      .rows = kAvx512Rows,
      .gemm = {kAvx512GemmF32, kAvx512GemmBf16, kAvx512GemmInt8F32, kAvx512GemmInt8Bf16,
               kAvx512GemmInt4F32, kAvx512GemmInt4Bf16},
      .f32_attention = kAvx512AttentionF32,
      .bf16_attention = kAvx512AttentionBf16};
  return &table;
}

const KernelTable* Avx512VnniKernels() {
  if (!MachineHasAvx512Vnni()) return nullptr;
  static const KernelTable table{
      .isa = "avx512vnni",
      .rows = kAvx512Rows,
      .gemm = {kAvx512GemmF32, kAvx512GemmBf16, kAvx512VnniGemmInt8F32, kAvx512VnniGemmInt8Bf16,
               kAvx512VnniGemmInt4F32, kAvx512VnniGemmInt4Bf16},
      .f32_attention = kAvx512AttentionF32,
      .bf16_attention = kAvx512AttentionBf16};
  return &table;
}

const KernelTable* BestAvx512Bf16Kernels() {
  if (!MachineHasAvx512Bf16()) return nullptr;
  static const Bf16Method best = PickBf16Method(kAvx512Bf16GemmDot, kAvx512GemmBf16);
  return Avx512Bf16Kernels(best);
}

}  // namespace

std::span<const Isa> KnownIsas() {
  static constexpr Isa kIsas[] = {
      {.name = "avx512bf16",
       .needs = "AVX-512 F, BW, DQ, VL, VNNI and BF16, AVX2, FMA and F16C",
       .kernels = BestAvx512Bf16Kernels},
      {.name = "avx512vnni",
       .needs = "AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C",
       .kernels = Avx512VnniKernels},
      {.name = "avx512",
       .needs = "AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C",
       .kernels = Avx512Kernels},
      {.name = "avx2vnni", .needs = "AVX-VNNI, AVX2, FMA and F16C", .kernels = Avx2VnniKernels},
      {.name = "avx2", .needs = "AVX2, FMA and F16C", .kernels = Avx2Kernels},
      {.name = "generic", .needs = "", .kernels = [] { return &GenericKernels(); }},
  };
  return kIsas;
}

const KernelTable* Avx512Bf16Kernels(Bf16Method method) {
  if (!MachineHasAvx512Bf16()) return nullptr;
  static const KernelTable dot{
      .isa = "avx512bf16",
      .rows = kAvx512Rows,
      .gemm = {kAvx512GemmF32, kAvx512Bf16GemmDot, kAvx512VnniGemmInt8F32, kAvx512VnniGemmInt8Bf16,
               kAvx512VnniGemmInt4F32, kAvx512VnniGemmInt4Bf16},
      .f32_attention = kAvx512AttentionF32,
      .bf16_attention = kAvx512Bf16AttentionDot};
  static const KernelTable fma{
      .isa = "avx512bf16",
      .rows = kAvx512Rows,
      .gemm = {kAvx512GemmF32, kAvx512Bf16GemmDot, kAvx512VnniGemmInt8F32, kAvx512VnniGemmInt8Bf16,
               kAvx512VnniGemmInt4F32, kAvx512VnniGemmInt4Bf16},
      .f32_attention = kAvx512AttentionF32,
      .bf16_attention = kAvx512Bf16AttentionFma};
  return method == Bf16Method::kDot ? &dot : &fma;
}

}  // namespace tandem
