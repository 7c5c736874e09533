#include "runtime/execution/fingerprints.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "kernels/create_backend.h"
#include "runtime/base/status_macros.h"
#include "tests/support/forwarding_backend.h"
#include "tests/unit/runtime/execution/executor_harness.h"

namespace tandem {
namespace {

std::unique_ptr<ExecutorHarness> Make(const std::string& name, const std::string& format,
                                      const std::string& device, int threads, int32_t block) {
  auto harness = ExecutorHarness::Create({.folder = TinyModel(name),
                                          .format = format,
                                          .backend = {.device = device, .num_threads = threads},
                                          .block_tokens = block,
                                          .max_sequences = 1});
  TANDEM_CHECK(harness.ok()) << harness.status().message();
  return *std::move(harness);
}

std::string NumericsIdOf(const std::string& name, const std::string& format,
                         const std::string& device, int threads) {
  const auto harness = Make(name, format, device, threads, 16);
  const auto id = NumericsId(harness->model(), &harness->backend());
  TANDEM_CHECK(id.ok()) << id.status().message();
  return *id;
}

std::string KvClassOf(const std::string& name, const std::string& format, const std::string& device,
                      int32_t block) {
  const auto harness = Make(name, format, device, 1, block);
  return KvClass(harness->model(), harness->executor().layout());
}

constexpr char kLlama[] = "llama_gqa16_scaled_biased";
constexpr char kOther[] = "llama_mha32_tied";

TEST(FingerprintsTest, NumericsIdIsTheSameForEveryThreadCount) {
  for (const char* format : {"f32", "bf16", "bf16_int8", "bf16_int4"}) {
    const std::string id = NumericsIdOf(kLlama, format, "cpu", 1);
    EXPECT_EQ(id.size(), 64u);
    EXPECT_EQ(id, NumericsIdOf(kLlama, format, "cpu", 2));
    EXPECT_EQ(id, NumericsIdOf(kLlama, format, "cpu", 3));
  }
}

TEST(FingerprintsTest, NumericsIdDiffersByModelTypeAndArithmetic) {
  const std::string id = NumericsIdOf(kLlama, "bf16", "cpu", 1);
  EXPECT_NE(id, NumericsIdOf(kOther, "bf16", "cpu", 1));
  EXPECT_NE(id, NumericsIdOf(kLlama, "f32", "cpu", 1));
  EXPECT_NE(id, NumericsIdOf(kLlama, "bf16_int8", "cpu", 1));
  EXPECT_NE(id, NumericsIdOf(kLlama, "bf16_int4", "cpu", 1));
}

class OtherDraws final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  absl::Status Sample(const SampleArgs& args) override {
    TANDEM_RETURN_IF_ERROR(backend().Sample(args));
    for (int64_t i = 0; i < args.count; ++i) {
      if (args.results[i].ok()) args.results[i]->logprob += 1e-6f;
    }
    return absl::OkStatus();
  }
};

TEST(FingerprintsTest, NumericsIdDiffersByWhatIsDrawn) {
  const auto harness = Make(kLlama, "f32", "cpu", 1, 16);
  auto backend = CreateBackend({.device = "cpu", .num_threads = 1});
  ASSERT_TRUE(backend.ok()) << backend.status();
  OtherDraws other(*std::move(backend));
  const auto id = NumericsId(harness->model(), &harness->backend());
  const auto other_id = NumericsId(harness->model(), &other);
  ASSERT_TRUE(id.ok() && other_id.ok()) << id.status() << other_id.status();
  EXPECT_NE(*id, *other_id);
}

// The window and the norms of the tiny checkpoints are in the digest of the model in any case;
// here, that their kernels are probed, too.
TEST(FingerprintsTest, NumericsIdIsMeasuredWithTheOptionsOfTheLayers) {
  for (const char* name :
       {"mistral_gqa16_window5", "qwen3_mqa16_biased_tied_bf16", "gemma2_gqa16_window7"}) {
    const auto harness = Make(name, "f32", "cpu", 1, 16);
    const Model& model = harness->model();
    EXPECT_NE(*ProbeNumerics(harness->backend(), ProbedOptionsOf(model)),
              *ProbeNumerics(harness->backend()))
        << name;
  }
  const auto gemma = Make("gemma2_gqa16_window7", "f32", "cpu", 1, 16);
  const ProbedOptions options = ProbedOptionsOf(gemma->model());
  EXPECT_TRUE(options.window && options.score_cap && options.logit_cap);
  EXPECT_FALSE(options.head_norms);
  EXPECT_FALSE(options.int8_weights);
  EXPECT_FALSE(options.kv_type);
  EXPECT_EQ(ProbedOptionsOf(Make(kLlama, "f32_kvbf16", "cpu", 1, 16)->model()).kv_type,
            KvType::kBF16);
  EXPECT_FALSE(options.int4_weights);
  EXPECT_TRUE(ProbedOptionsOf(Make(kLlama, "bf16_int4", "cpu", 1, 16)->model()).int4_weights);
  const auto int8 = ProbedOptionsOf(Make(kLlama, "bf16_int8", "cpu", 1, 16)->model());
  EXPECT_TRUE(int8.int8_weights);
  EXPECT_FALSE(int8.int8_outliers);
  EXPECT_TRUE(
      ProbedOptionsOf(Make(kLlama, "bf16_int8_outliers6", "cpu", 1, 16)->model()).int8_outliers);
  const auto plain = Make("mistral_head20_no_window_bf16", "f32", "cpu", 1, 16);
  EXPECT_EQ(*ProbeNumerics(plain->backend(), ProbedOptionsOf(plain->model())),
            *ProbeNumerics(plain->backend()));
}

TEST(FingerprintsTest, EachOfTheThreeTypesHasItsNameInTheFingerprints) {
  EXPECT_EQ(NamesOf({.compute = DType::kBF16, .weights = WeightType::kF32, .kv = KvType::kF32}),
            "compute=bf16 weights=f32 kv=f32");
  EXPECT_EQ(NamesOf({.compute = DType::kF32, .weights = WeightType::kBF16, .kv = KvType::kF32}),
            "compute=f32 weights=bf16 kv=f32");
  EXPECT_EQ(NamesOf({.compute = DType::kF32, .weights = WeightType::kF32, .kv = KvType::kBF16}),
            "compute=f32 weights=f32 kv=bf16");
  EXPECT_EQ(NamesOf({.compute = DType::kF32, .weights = WeightType::kInt8, .kv = KvType::kF32}),
            "compute=f32 weights=int8 kv=f32");
  EXPECT_EQ(NamesOf({.weights = WeightType::kInt8, .output_is_plain = true}),
            "compute=f32 weights=int8 kv=f32 output=f32");
  EXPECT_NE(NumericsIdOf(kLlama, "bf16_int8", "cpu", 1),
            NumericsIdOf(kLlama, "bf16_int8_output", "cpu", 1));
  EXPECT_EQ(NamesOf({.weights = WeightType::kInt8, .int8_outliers = 6.25f}),
            "compute=f32 weights=int8 kv=f32 outliers=6.25");
  const std::string six = NumericsIdOf(kLlama, "bf16_int8_outliers6", "cpu", 1);
  EXPECT_EQ(six, NumericsIdOf(kLlama, "bf16_int8_outliers6", "cpu", 2));
  EXPECT_NE(six, NumericsIdOf(kLlama, "bf16_int8", "cpu", 1));
  EXPECT_NE(six, NumericsIdOf(kLlama, "bf16_int8_outliers6.00001", "cpu", 1));
}

TEST(FingerprintsTest, KvClassDiffersByModelTypeAndBlock) {
  const std::string kv_class = KvClassOf(kLlama, "f32", "cpu", 16);
  EXPECT_EQ(kv_class.size(), 64u);
  EXPECT_EQ(kv_class, KvClassOf(kLlama, "f32", "cpu", 16));
  EXPECT_NE(kv_class, KvClassOf(kOther, "f32", "cpu", 16));
  EXPECT_NE(kv_class, KvClassOf(kLlama, "bf16", "cpu", 16));
  EXPECT_NE(KvClassOf(kLlama, "f32_int8", "cpu", 16), kv_class) << "other weights, other keys";
  EXPECT_NE(KvClassOf(kLlama, "f32_int8_outliers6", "cpu", 16),
            KvClassOf(kLlama, "f32_int8", "cpu", 16));
  EXPECT_NE(kv_class, KvClassOf(kLlama, "f32", "cpu", 32));
}

}  // namespace
}  // namespace tandem
