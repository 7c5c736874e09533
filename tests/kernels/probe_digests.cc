// Prints a line for every operation of the numerics probe on one path of the cpu: its name
// and the digest of what it gave, for tools/dev/arm_digests.
//
// usage: probe_digests ISA

#include <cstdint>
#include <cstdio>

#include "kernels/create_backend.h"
#include "kernels/probe/numerics_probe.h"

namespace tandem {
namespace {

// The first is the probe's own; the others have heads and tiles of other sizes.
constexpr ProbeShape kShapes[] = {
    {.window = 299,
     .head_norms = true,
     .score_cap = 5.0f,
     .logit_cap = 30.0f,
     .int8_weights = true,
     .int8_outliers = 1.5f,
     .int4_weights = true,
     .kv_type = KvType::kInt8},
    {.rows = 13,
     .features = 640,
     .outputs = 97,
     .vocabulary = 333,
     .heads = 7,
     .kv_heads = 1,
     .head_dim = 64,
     .block_tokens = 32,
     .positions = 150,
     .prefill_rows = 40,
     .window = 70,
     .score_cap = 3.0f,
     .logit_cap = 20.0f,
     .int8_weights = true,
     .int8_outliers = 0x1p-20f,
     .int4_weights = true,
     .kv_type = KvType::kInt8G8},
    {.features = 40,
     .vocabulary = 50,
     .heads = 6,
     .head_dim = 80,
     .positions = 131,
     .prefill_rows = 9,
     .kv_type = KvType::kFp8},
};

int Main(const char* isa) {
  const auto backend = CreateBackend({.device = "cpu", .isa = isa});
  if (!backend.ok()) {
    std::fprintf(stderr, "probe_digests: %s\n", backend.status().ToString().c_str());
    return 1;
  }
  for (const ProbeShape& shape : kShapes) {
    for (const uint64_t seed : {1, 2, 3}) {
      const auto operations = ProbeOperations(**backend, shape, seed);
      if (!operations.ok()) {
        std::fprintf(stderr, "probe_digests: %s\n", operations.status().ToString().c_str());
        return 1;
      }
      for (const ProbedOperation& operation : *operations) {
        std::printf("%s: %s\n", operation.name.c_str(),
                    HexOf(operation.digest.data(), operation.digest.size()).c_str());
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: probe_digests ISA\n");
    return 2;
  }
  return tandem::Main(argv[1]);
}
