#include "runtime/execution/fingerprints.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/runtime/execution/executor_harness.h"

namespace tandem {
namespace {

std::unique_ptr<ExecutorHarness> Make(const std::string& name, const std::string& dtype,
                                      const std::string& device, int threads, int32_t block) {
  auto harness = ExecutorHarness::Create({.folder = TinyModel(name),
                                          .dtype = dtype,
                                          .backend = {.device = device, .num_threads = threads},
                                          .kv = {.block_tokens = block},
                                          .max_sequences = 1});
  TANDEM_CHECK(harness.ok()) << harness.status().message();
  return *std::move(harness);
}

std::string NumericsIdOf(const std::string& name, const std::string& dtype,
                         const std::string& device, int threads) {
  const auto harness = Make(name, dtype, device, threads, 16);
  const auto id = NumericsId(harness->model(), &harness->backend());
  TANDEM_CHECK(id.ok()) << id.status().message();
  return *id;
}

std::string KvClassOf(const std::string& name, const std::string& dtype, const std::string& device,
                      int32_t block) {
  const auto harness = Make(name, dtype, device, 1, block);
  return KvClass(harness->model(), harness->executor().layout());
}

constexpr char kLlama[] = "llama_gqa16_scaled_biased";
constexpr char kOther[] = "llama_mha32_tied";

TEST(FingerprintsTest, NumericsIdIsTheSameForEveryThreadCount) {
  for (const char* dtype : {"f32", "bf16"}) {
    const std::string id = NumericsIdOf(kLlama, dtype, "cpu", 1);
    EXPECT_EQ(id.size(), 64u);
    EXPECT_EQ(id, NumericsIdOf(kLlama, dtype, "cpu", 2));
    EXPECT_EQ(id, NumericsIdOf(kLlama, dtype, "cpu", 3));
  }
}

TEST(FingerprintsTest, NumericsIdDiffersByModelTypeAndArithmetic) {
  const std::string id = NumericsIdOf(kLlama, "bf16", "cpu", 1);
  EXPECT_NE(id, NumericsIdOf(kOther, "bf16", "cpu", 1));
  EXPECT_NE(id, NumericsIdOf(kLlama, "f32", "cpu", 1));
}

// The window and the norms of the tiny checkpoints are in the digest of the model in any case;
// here, that their kernels are probed, too.
TEST(FingerprintsTest, NumericsIdIsMeasuredWithTheOptionsOfTheLayers) {
  for (const char* name : {"mistral_gqa16_window5", "qwen3_mqa16_biased_tied_bf16"}) {
    const auto harness = Make(name, "f32", "cpu", 1, 16);
    const Model& model = harness->model();
    EXPECT_NE(*ProbeNumerics(harness->backend(), ProbedOptionsOf(model)),
              *ProbeNumerics(harness->backend()))
        << name;
  }
  const auto plain = Make("mistral_head20_no_window_bf16", "f32", "cpu", 1, 16);
  EXPECT_EQ(*ProbeNumerics(plain->backend(), ProbedOptionsOf(plain->model())),
            *ProbeNumerics(plain->backend()));
}

TEST(FingerprintsTest, KvClassDiffersByModelTypeAndBlock) {
  const std::string kv_class = KvClassOf(kLlama, "f32", "cpu", 16);
  EXPECT_EQ(kv_class.size(), 64u);
  EXPECT_EQ(kv_class, KvClassOf(kLlama, "f32", "cpu", 16));
  EXPECT_NE(kv_class, KvClassOf(kOther, "f32", "cpu", 16));
  EXPECT_NE(kv_class, KvClassOf(kLlama, "bf16", "cpu", 16));
  EXPECT_NE(kv_class, KvClassOf(kLlama, "f32", "cpu", 32));
}

}  // namespace
}  // namespace tandem
