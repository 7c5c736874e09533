#include "runtime/model/dummy_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/api/dtype.h"
#include "kernels/api/half.h"
#include "runtime/base/random.h"
#include "runtime/base/sha256.h"

namespace tandem {
namespace {

constexpr int kDummyVersion = 1;  // Raise when the same config would give other values.
constexpr double kBiasLimit = 0.02;

uint64_t SeedOf(std::string_view name) {
  const Sha256Digest digest = Sha256Of(name);
  uint64_t seed = 0;
  for (int i = 0; i < 8; ++i) seed = seed << 8 | digest[static_cast<size_t>(i)];
  return seed;
}

class DummyWeights final : public WeightSource {
 public:
  explicit DummyWeights(const ModelConfig& config) : config_(config) {}

  bool Contains(std::string_view name) const override {
    return name != "lm_head.weight" || !config_.tied_embeddings;
  }

  std::optional<TensorType> TypeOf(std::string_view) const override {
    return config_.checkpoint_type;
  }

  std::optional<std::vector<int64_t>> ShapeOf(std::string_view) const override {
    return std::nullopt;
  }

  std::vector<std::string> Names() const override { return {}; }

  absl::StatusOr<TensorView> Tensor(std::string_view name,
                                    std::span<const int64_t> shape) override {
    size_t count = 1;
    for (int64_t dimension : shape) count *= static_cast<size_t>(dimension);
    buffers_.emplace_back(count * static_cast<size_t>(SizeBytes(config_.checkpoint_type)));
    uint8_t* const out = buffers_.back().data();
    if (shape.size() == 1 && name.ends_with(".weight")) {
      FillWithOnes(out, count);  // A norm, once its offset is added.
    } else {
      Fill(out, SeedOf(name), count, Limit(name, shape));
    }
    return TensorView{config_.checkpoint_type, {shape.begin(), shape.end()}, buffers_.back()};
  }

  void Release() override { buffers_.clear(); }

  std::string Identity() const override {
    return absl::StrFormat("dummy %d %s %s", kDummyVersion, config_.architecture,
                           std::string(Name(config_.checkpoint_type)));
  }

 private:
  // Uniform in ±limit has variance limit² / 3.
  double Limit(std::string_view name, std::span<const int64_t> shape) const {
    if (shape.size() == 1) return kBiasLimit;
    const bool in_out = config_.family == ModelFamily::kGpt2 &&
                        name.find(".c_") != std::string_view::npos;  // Conv1D: [in, out].
    return std::sqrt(3.0 / static_cast<double>(in_out ? shape[0] : shape[1]));
  }

  void Fill(uint8_t* out, uint64_t seed, size_t count, double limit) const {
    switch (config_.checkpoint_type) {
      case TensorType::kF32:
        return FillAs<float>(out, seed, count, limit, [](float value) { return value; });
      case TensorType::kF16:
        return FillAs<uint16_t>(out, seed, count, limit,
                                [](float value) { return ToHalf(value).bits; });
      case TensorType::kBF16:
        return FillAs<uint16_t>(out, seed, count, limit,
                                [](float value) { return ToBfloat16(value).bits; });
      case TensorType::kI32:  // No config names these.
      case TensorType::kF8E4M3:
        return;
    }
  }

  // Four values from each 64 random bits; their place alone decides them.
  template <typename T, typename Convert>
  static void FillAs(uint8_t* out, uint64_t seed, size_t count, double limit, Convert convert) {
    const float step = static_cast<float>(limit / 32768.0);
    for (size_t i = 0; i < count; i += 4) {
      const uint64_t bits = Mix64(seed + (i / 4 + 1) * 0x9E3779B97F4A7C15u);
      T values[4];
      for (int j = 0; j < 4; ++j) {
        const int level = static_cast<int>(bits >> (16 * j) & 0xFFFFu) - 32768;
        values[j] = convert((static_cast<float>(level) + 0.5f) * step);
      }
      std::memcpy(out + i * sizeof(T), values, std::min<size_t>(4, count - i) * sizeof(T));
    }
  }

  void FillWithOnes(uint8_t* out, size_t count) const {
    const float one = 1.0f - config_.norm_offset;
    const uint16_t bits =
        config_.checkpoint_type == TensorType::kF16 ? ToHalf(one).bits : ToBfloat16(one).bits;
    const size_t size = static_cast<size_t>(SizeBytes(config_.checkpoint_type));
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(out + i * size, size == 4 ? static_cast<const void*>(&one) : &bits, size);
    }
  }

  const ModelConfig config_;
  std::list<std::vector<uint8_t>> buffers_;  // What Tensor() gave out.
};

}  // namespace

std::unique_ptr<WeightSource> MakeDummyWeights(const ModelConfig& config) {
  return std::make_unique<DummyWeights>(config);
}

}  // namespace tandem
