// What weights of fewer bits add to each projection of a model: the ratio of its outputs' power to
// that of their error, with the inputs that the layer has in f32. Perplexity
// (demo_goldens_test.cc) is of all together, and a layer that is wrong may hide in it.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/small_file.h"
#include "runtime/config/json.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/runtime/model/decoder_harness.h"

namespace tandem {
namespace {

constexpr int64_t kTokens = 96;

// A projection of a model in f32 as it was packed, and what came in.
struct Projection {
  LinearSpec spec;
  std::vector<WeightPart> parts;
  std::vector<std::vector<std::byte>> data;  // of the parts
  std::vector<float> input;                  // [kTokens, K]
};

class WatchedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // In the order in which a step takes them.
  std::vector<Projection*> projections() const { return in_order_; }

  absl::Status PackLinear(const LinearSpec& spec, std::span<const WeightPart> parts,
                          std::span<std::byte> packed) const override {
    Projection projection{.spec = spec, .parts = {}, .data = {}, .input = {}};
    for (const WeightPart& part : parts) {
      const auto* const begin = static_cast<const std::byte*>(part.data);
      projection.data.emplace_back(
          begin, begin + part.out_features * spec.in_features * SizeOf(part.dtype));
      projection.parts.push_back(part);
      projection.parts.back().data = projection.data.back().data();
    }
    {
      const std::lock_guard lock(mu_);
      by_address_[reinterpret_cast<uint64_t>(packed.data())] = std::move(projection);
    }
    return ForwardingBackend::PackLinear(spec, parts, packed);
  }
  absl::StatusOr<std::unique_ptr<LinearOp>> PrepareLinear(const LinearSpec& spec,
                                                          DevicePtr<const std::byte> packed,
                                                          size_t size_bytes) override {
    auto op = ForwardingBackend::PrepareLinear(spec, packed, size_bytes);
    const auto found = by_address_.find(packed.address());
    if (op.ok() && found != by_address_.end()) by_op_[op->get()] = &found->second;
    return op;
  }
  absl::Status Linear(const LinearArgs& args) override {
    if (const auto found = by_op_.find(args.op); found != by_op_.end()) {
      Projection& projection = *found->second;
      projection.input.resize(static_cast<size_t>(args.num_rows * projection.spec.in_features));
      TANDEM_RETURN_IF_ERROR(
          Download(projection.input.data(), args.input, projection.input.size() * sizeof(float)));
      in_order_.push_back(&projection);
    }
    return ForwardingBackend::Linear(args);
  }

  // Its outputs with weights of that type, [kTokens, N].
  std::vector<float> Outputs(const Projection& projection, WeightType type, int64_t group) {
    LinearSpec spec = projection.spec;
    spec.weight_type = type;
    spec.group = group;
    const auto format = GetPackedFormat(spec);
    TANDEM_CHECK(format.ok()) << format.status().message();
    auto packed = AllocateMirror(format->size_bytes);
    auto input = AllocateMirror(projection.input.size() * sizeof(float));
    const auto rows = static_cast<int64_t>(projection.input.size()) / spec.in_features;
    std::vector<float> outputs(static_cast<size_t>(rows * spec.columns()));
    auto output = AllocateMirror(outputs.size() * sizeof(float));
    TANDEM_CHECK(packed.ok() && input.ok() && output.ok());
    const std::span<std::byte> on_host(packed->host.data(), format->size_bytes);
    TANDEM_CHECK(ForwardingBackend::PackLinear(spec, projection.parts, on_host).ok());
    TANDEM_CHECK(Upload(packed->device.data(), on_host.data(), on_host.size()).ok());
    std::memcpy(input->host.data(), projection.input.data(), projection.input.size() * 4);
    TANDEM_CHECK(Upload(input->device.data(), input->host.data(), input->host.size_bytes()).ok());
    auto op =
        ForwardingBackend::PrepareLinear(spec, packed->device.data(), packed->device.size_bytes());
    TANDEM_CHECK(op.ok()) << op.status().message();
    TANDEM_CHECK(ForwardingBackend::Linear({.op = op->get(),
                                            .input = input->device.data(),
                                            .output = output->device.data(),
                                            .num_rows = rows})
                     .ok());
    TANDEM_CHECK(Download(outputs.data(), output->device.data(), outputs.size() * 4).ok() &&
                 Synchronize().ok());
    return outputs;
  }

 private:
  mutable std::mutex mu_;
  mutable std::map<uint64_t, Projection> by_address_;
  std::map<const LinearOp*, Projection*> by_op_;
  std::vector<Projection*> in_order_;
};

double Decibels(const std::vector<float>& exact, const std::vector<float>& other) {
  double power = 0, error = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    power += double{exact[i]} * exact[i];
    error += (double{exact[i]} - other[i]) * (double{exact[i]} - other[i]);
  }
  return 10 * std::log10(power / error);
}

struct Format {
  const char* name;
  WeightType type;
  int64_t group;
  double least;  // Decibels of any layer.
};

// A uniform rounding of numbers that reach `m` times their deviation, in `n` steps, has
// 10·log10(12 (n / 2m)²): of 254 steps and m = 4 about 41 dB, of 15.5 and the 2.1 that 32 normal
// numbers reach about 22. Inputs in 8 bits cost as much as weights in 8 again.
constexpr Format kFormats[] = {{"int8", WeightType::kInt8, 0, 34},
                               {"int4, groups of 32", WeightType::kInt4, 32, 21},
                               {"int4, groups of 128", WeightType::kInt4, 128, 20}};

void ExpectLittleNoise(const std::string& name, const ModelOptions& options,
                       std::span<const int32_t> tokens) {
  auto cpu = CreateBackend({.device = "cpu", .num_threads = 2});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  auto watched = std::make_unique<WatchedBackend>(*std::move(cpu));
  WatchedBackend& backend = *watched;
  auto harness = DecoderHarness::Create(options, std::move(watched), kTokens);
  ASSERT_TRUE(harness.ok()) << harness.status();
  (*harness)->Feed(tokens);
  const auto layers = static_cast<size_t>((*harness)->model().config().num_layers);
  ASSERT_EQ(backend.projections().size(), layers * 4 + 1);
  constexpr const char* kNames[] = {"query, key and value", "output", "gate and up", "down"};
  for (const Format& format : kFormats) {
    std::map<std::string, std::pair<double, double>> ranges;
    for (size_t i = 0; i < backend.projections().size(); ++i) {
      const Projection& projection = *backend.projections()[i];
      const double decibels = Decibels(backend.Outputs(projection, WeightType::kF32, 0),
                                       backend.Outputs(projection, format.type, format.group));
      const std::string kind = i < layers * 4 ? kNames[i % 4] : "logits";
      // A product of gate and up has the errors of both.
      EXPECT_GE(decibels, format.least - (projection.spec.gated ? 3 : 0))
          << name << ", " << format.name << ", " << kind << " of layer " << i / 4;
      const auto [range, is_new] = ranges.emplace(kind, std::pair(decibels, decibels));
      range->second.first = std::min(range->second.first, decibels);
      range->second.second = std::max(range->second.second, decibels);
    }
    for (const auto& [kind, range] : ranges) {
      std::printf("%s, %s: %s %.1f to %.1f dB\n", name.c_str(), format.name, kind.c_str(),
                  range.first, range.second);
    }
  }
}

TEST(LayerNoiseTest, OfTheDemoModelOnHeldOutText) {
  const std::string folder = std::string(TANDEM_TEST_DATA) + "/demo_model";
  const std::string golden = std::string(TANDEM_TEST_DATA) + "/demo_goldens/held_out.json";
  const auto text = ReadSmallFile(golden, 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto object = ParseJsonObject(*text, golden, {});
  ASSERT_TRUE(object.ok()) << object.status();
  std::vector<int32_t> tokens;
  for (const auto& id : object->at("windows").as_array()[0].as_array()) {
    if (std::ssize(tokens) < kTokens) tokens.push_back(static_cast<int32_t>(id.as_int64()));
  }
  ASSERT_EQ(std::ssize(tokens), kTokens);
  ExpectLittleNoise("demo model", InFormat(folder, "f32"), tokens);
}

TEST(LayerNoiseTest, OfDummyWeights) {
  const TempFolder folder;
  folder.Write("config.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
      "intermediate_size": 1408, "num_hidden_layers": 3, "num_attention_heads": 8,
      "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 256,
      "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
      "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
      "torch_dtype": "bfloat16"})");
  ModelOptions options = InFormat(folder.path(), "f32");
  options.load_format = LoadFormat::kDummy;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kTokens; ++i) tokens.push_back(i * 37 % 1000);
  ExpectLittleNoise("dummy weights", options, tokens);
}

}  // namespace
}  // namespace tandem
