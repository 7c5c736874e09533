#include "kernels/cpu/kernel_table_x86.h"

#include <cpuid.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
                                 .gemm = kAvx2Gemm,
                                 .f32_attention = kAvx2AttentionF32,
                                 .bf16_attention = kAvx2AttentionBf16};
  return &table;
}

const KernelTable* Avx2VnniKernels() {
  if (!MachineHasAvx2Vnni()) return nullptr;
  static const KernelTable table = Avx2Kernels()->With("avx2vnni", kAvx2VnniGemm);
  return &table;
}

const KernelTable* Avx512Kernels() {
  if (!MachineHasAvx512()) return nullptr;
  static const KernelTable table{.isa = "avx512",
                                 .rows = kAvx512Rows,
                                 .gemm = kAvx512Gemm,
                                 .f32_attention = kAvx512AttentionF32,
                                 .bf16_attention = kAvx512AttentionBf16};
  return &table;
}

const KernelTable* Avx512VnniKernels() {
  if (!MachineHasAvx512Vnni()) return nullptr;
  static const KernelTable table = Avx512Kernels()->With("avx512vnni", kAvx512VnniGemm);
  return &table;
}

// CPUID's leaf 7, EDX, has a bit for each. (Names of features are not the same for all compilers.)
bool MachineHasAmx(uint32_t feature_bits) {
  constexpr uint32_t kTileBit = 1u << 24;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const uint32_t wanted = kTileBit | feature_bits;
  return (edx & wanted) == wanted;
}
constexpr uint32_t kAmxBf16Bit = 1u << 22, kAmxInt8Bit = 1u << 25;

// Linux gives tiles, 8 KiB that a thread's state grows by, to processes that ask: once, for all
// their threads. Older kernels, and who stands in for one, refuse.
bool MayUseTiles() {
#if defined(__linux__)
  static const bool may = [] {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return may;
#else
  return false;
#endif
}

bool HasInt8Tiles() {
  return MachineHasAvx512Bf16() && MachineHasAmx(kAmxInt8Bit) && MayUseTiles();
}

KernelTable MakeAvx512Bf16Table(Bf16Method bf16, Int8Method int8) {
  KernelTable table = Avx512VnniKernels()->With("avx512bf16", {});
  table.bf16_attention = kAvx512Bf16AttentionFma;
  if (bf16 == Bf16Method::kDot) {
    table.Replace(kAvx512Bf16GemmDot);
    table.bf16_attention = kAvx512Bf16AttentionDot;
  }
  if (int8 == Int8Method::kTiles) {
    for (const GemmKernels* const tiles : {&kAmxGemmInt8F32, &kAmxGemmInt8Bf16}) {
      GemmKernels gemm = *table.FindGemm(WeightType::kInt8, tiles->compute_dtype);
      gemm.many_rows = tiles;
      gemm.many_rows_from = kTileRowsFrom;
      table.Replace(gemm);
    }
  }
  return table;
}

const KernelTable* AmxKernels() {
  if (!HasInt8Tiles() || !MachineHasAmx(kAmxBf16Bit)) return nullptr;
  static const KernelTable table =
      Avx512Bf16Kernels(PickedBf16Method(), PickedInt8Method())->With("amx", {&kAmxGemmBf16, 1});
  return &table;
}

}  // namespace

Bf16Method PickedBf16Method() {
  if (!MachineHasAvx512Bf16()) return Bf16Method::kDot;
  static const Bf16Method picked = PickBf16Method(
      kAvx512Bf16GemmDot, *Avx512VnniKernels()->FindGemm(WeightType::kBF16, DType::kBF16));
  return picked;
}

Int8Method PickedInt8Method() {
  if (!HasInt8Tiles()) return Int8Method::kDot;
  static const Int8Method picked = PickInt8Method(
      *Avx512VnniKernels()->FindGemm(WeightType::kInt8, DType::kBF16), kAmxGemmInt8Bf16);
  return picked;
}

const KernelTable* Avx512Bf16Kernels(Bf16Method bf16, Int8Method int8) {
  if (!MachineHasAvx512Bf16()) return nullptr;
  if (int8 == Int8Method::kTiles && !HasInt8Tiles()) return nullptr;
  static const KernelTable tables[2][2] = {
      {MakeAvx512Bf16Table(Bf16Method::kDot, Int8Method::kDot),
       MakeAvx512Bf16Table(Bf16Method::kDot, Int8Method::kTiles)},
      {MakeAvx512Bf16Table(Bf16Method::kFma, Int8Method::kDot),
       MakeAvx512Bf16Table(Bf16Method::kFma, Int8Method::kTiles)}};
  return &tables[static_cast<int>(bf16)][static_cast<int>(int8)];
}

std::span<const Isa> KnownIsas() {
  static constexpr Isa kIsas[] = {
      {.name = "avx512bf16",
       .needs = "AVX-512 F, BW, DQ, VL, VNNI and BF16, AVX2, FMA and F16C",
       .kernels = [] { return Avx512Bf16Kernels(PickedBf16Method(), PickedInt8Method()); }},
      {.name = "avx512vnni",
       .needs = "AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C",
       .kernels = Avx512VnniKernels},
      {.name = "avx512",
       .needs = "AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C",
       .kernels = Avx512Kernels},
      {.name = "avx2vnni", .needs = "AVX-VNNI, AVX2, FMA and F16C", .kernels = Avx2VnniKernels},
      {.name = "avx2", .needs = "AVX2, FMA and F16C", .kernels = Avx2Kernels},
      {.name = "generic", .needs = "", .kernels = [] { return &GenericKernels(); }},
      // A class of its own.
      {.name = "amx",
       .needs = "AMX-TILE, AMX-INT8 and AMX-BF16, a kernel that lets processes use them, and what "
                "avx512bf16 needs",
       .kernels = AmxKernels},
  };
  return kIsas;
}

}  // namespace tandem
