// A format of weights that no backend here has, from the checkpoint to the operation: bytes with a
// scale for each output, as quantised checkpoints store them. All of it is this file's: a packing,
// an inner loop and a declaration with scales. Whatever lies between knows nothing of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/create_backend.h"
#include "kernels/support/host_args.h"
#include "kernels/support/host_backend.h"
#include "runtime/model/weights.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

// Packed: a scale for each output, then a byte for each weight, [N, K].
class RowScaledOp final : public LinearOp {
 public:
  RowScaledOp(const LinearSpec& spec, const std::byte* packed) : LinearOp(spec), packed_(packed) {}

  float scale(int64_t n) const { return reinterpret_cast<const float*>(packed_)[n]; }
  float weight(int64_t n, int64_t k) const {
    const auto* bytes = reinterpret_cast<const int8_t*>(packed_ + spec().out_features * 4);
    return bytes[n * spec().in_features + k];
  }

 private:
  const std::byte* const packed_;
};

class RowScaledBackend final : public HostBackend {
 public:
  explicit RowScaledBackend(std::string id) : id_(std::move(id)) {}

  std::string name() const override { return "row scaled"; }
  std::string isa() const override { return "none"; }

  absl::StatusOr<PackedFormat> GetPackedFormat(const LinearSpec& spec) const override {
    return PackedFormat{
        .id = id_, .size_bytes = static_cast<size_t>(spec.out_features * (4 + spec.in_features))};
  }
  absl::Status PackLinear(const LinearSpec& spec, std::span<const WeightPart> parts,
                          std::span<std::byte> packed) const override {
    auto* scales = reinterpret_cast<float*>(packed.data());
    auto* bytes = reinterpret_cast<int8_t*>(packed.data() + spec.out_features * 4);
    for (const WeightPart& part : parts) {
      TANDEM_CHECK(part.scales.size() == static_cast<size_t>(part.out_features));
      scales = std::copy(part.scales.begin(), part.scales.end(), scales);
      const float* weights = static_cast<const float*>(part.data);
      for (int64_t i = 0; i < part.out_features * spec.in_features; ++i) {
        *bytes++ = static_cast<int8_t>(weights[i]);
      }
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<LinearOp>> PrepareLinear(const LinearSpec& spec,
                                                          DevicePtr<const std::byte> packed,
                                                          size_t) override {
    return std::make_unique<RowScaledOp>(spec, OnHost(packed));
  }
  absl::Status Linear(const LinearArgs& device_args) override {
    const HostLinearArgs args = OnHost(device_args);
    const auto* op = static_cast<const RowScaledOp*>(args.op);
    const auto* x = static_cast<const float*>(args.input);
    for (int64_t n = 0; n < op->spec().out_features; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < op->spec().in_features; ++k) sum += x[k] * op->weight(n, k);
      static_cast<float*>(args.output)[n] = sum * op->scale(n);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<KvTileFormat> GetKvTileFormat(const KvTileShape&, DType) const override {
    return None();
  }
  absl::Status Embedding(const EmbeddingArgs&) override { return None(); }
  absl::Status RmsNorm(const RmsNormArgs&) override { return None(); }
  absl::Status LayerNorm(const LayerNormArgs&) override { return None(); }
  absl::Status Add(const AddArgs&) override { return None(); }
  absl::Status SoftCap(const SoftCapArgs&) override { return None(); }
  absl::Status GatherRows(const GatherRowsArgs&) override { return None(); }
  absl::Status Sample(const SampleArgs&) override { return None(); }
  absl::Status RotaryTable(const RotaryTableArgs&) override { return None(); }
  absl::Status RotaryKvWrite(const RotaryKvWriteArgs&) override { return None(); }
  absl::Status DecodeAttention(const DecodeAttentionArgs&) override { return None(); }
  absl::Status PrefillAttention(const PrefillAttentionArgs&) override { return None(); }
  absl::Status CopyBlocks(const CopyBlocksArgs&) override { return None(); }
  absl::Status ChecksumBlocks(const ChecksumBlocksArgs&) override { return None(); }
  uint64_t work_done() const override { return 0; }

 private:
  const std::string id_;

  static absl::Status None() { return absl::UnimplementedError("linear layers only"); }
};

// A checkpoint in memory.
class Tensors final : public WeightSource {
 public:
  explicit Tensors(std::map<std::string, std::vector<float>, std::less<>> tensors)
      : tensors_(std::move(tensors)) {}

  bool Contains(std::string_view name) const override { return tensors_.contains(name); }
  std::optional<TensorType> TypeOf(std::string_view) const override { return TensorType::kF32; }
  std::optional<std::vector<int64_t>> ShapeOf(std::string_view) const override {
    return std::nullopt;
  }
  std::vector<std::string> Names() const override { return {}; }
  absl::StatusOr<TensorView> Tensor(std::string_view name,
                                    std::span<const int64_t> shape) override {
    const auto at = tensors_.find(name);
    if (at == tensors_.end()) return absl::NotFoundError(std::string(name));
    read_.push_back(std::string(name));
    unreleased_.push_back(std::string(name));
    const auto* bytes = reinterpret_cast<const uint8_t*>(at->second.data());
    return TensorView{
        TensorType::kF32, {shape.begin(), shape.end()}, {bytes, at->second.size() * 4}};
  }
  void Release() override {
    released_.push_back(std::move(unreleased_));
    unreleased_.clear();
  }
  std::string Identity() const override { return "in memory"; }

  const std::vector<std::string>& read() const { return read_; }
  // What was read between two calls of Release.
  const std::vector<std::vector<std::string>>& released() const { return released_; }

 private:
  const std::map<std::string, std::vector<float>, std::less<>> tensors_;
  std::vector<std::string> read_, unreleased_;
  std::vector<std::vector<std::string>> released_;
};

// A model of one layer: two parts of 3 inputs, with 2 and 1 outputs.
ModelSpec OneLinear() {
  ModelSpec spec;
  spec.logits = {.in_features = 3,
                 .parts = {{.out_features = 2,
                            .weight = {"a.weight", {2, 3}},
                            .scales = {"a.scales", {2, 1}},
                            .bias = {}},
                           {.out_features = 1,
                            .weight = {"b.weight", {1, 3}},
                            .scales = {"b.scales", {1, 1}},
                            .bias = {}}}};
  return spec;
}

Tensors Checkpoint(float last_scale) {
  return Tensors({{"a.weight", {1, -2, 3, 4, 5, -6}},
                  {"a.scales", {0.5f, 0.25f}},
                  {"b.weight", {100, 0, -100}},
                  {"b.scales", {last_scale}},
                  {"other.scales", {7.0f}}});
}

class ScaledWeightsTest : public testing::Test {
 protected:
  std::unique_ptr<ModelWeights> Load(const ModelSpec& spec, Tensors* source) {
    auto weights = ModelWeights::Load(spec, source, &backend_, {.cache_dir = cache_.path()});
    TANDEM_CHECK(weights.ok()) << weights.status().message();
    return *std::move(weights);
  }

  std::vector<float> Multiply(const ModelWeights& weights, std::vector<float> x) {
    std::vector<float> y(3);
    TANDEM_CHECK(backend_
                     .Linear({.op = weights.parts().logits.op.get(),
                              .input = OfHost<const void>(x.data()),
                              .output = OfHost<void>(y.data()),
                              .num_rows = 1})
                     .ok());
    return y;
  }

  TempFolder cache_;
  RowScaledBackend backend_{"row scaled"};
};

TEST_F(ScaledWeightsTest, ComeFromTheCheckpointToTheOperationAndFromTheCache) {
  Tensors source = Checkpoint(2.0f), again = Checkpoint(2.0f);
  const auto packed = Load(OneLinear(), &source);
  EXPECT_THAT(source.read(), ElementsAre("a.weight", "a.scales", "b.weight", "b.scales"));
  EXPECT_THAT(Multiply(*packed, {1, 1, 2}), ElementsAre(2.5f, -0.75f, -200.0f));
  const auto mapped = Load(OneLinear(), &again);
  EXPECT_TRUE(again.read().empty()) << "packed again";
  EXPECT_THAT(Multiply(*mapped, {1, 1, 2}), ElementsAre(2.5f, -0.75f, -200.0f));
  EXPECT_EQ(ModelWeights::Sizes(OneLinear(), backend_, {}, TensorType::kF32)->packed_bytes, 64u);
}

// So that a checkpoint larger than the memory can be packed.
TEST_F(ScaledWeightsTest, ASectionIsReleasedBeforeTheNextIsRead) {
  Tensors source({{"a.weight", {1, -2, 3, 4, 5, -6}},
                  {"a.scales", {0.5f, 0.25f}},
                  {"b.weight", {100, 0, -100}},
                  {"b.scales", {1}},
                  {"norm.weight", {1, 1, 1}}});
  ModelSpec spec = OneLinear();
  spec.final_norm = {.weight = {"norm.weight", {3}}, .bias = {}};
  Load(spec, &source);
  EXPECT_THAT(source.released(),
              UnorderedElementsAre(ElementsAre("norm.weight"),
                                   ElementsAre("a.weight", "a.scales", "b.weight", "b.scales")));
}

TEST_F(ScaledWeightsTest, AreTensorsOfTheModelAndOfItsDigest) {
  std::vector<std::string> names;
  for (const TensorDecl& tensor : OneLinear().Tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("a.weight", "a.scales", "b.weight", "b.scales"));
  std::vector<std::string> matrices;  // These decide the type that is computed in, scales do not.
  for (const TensorDecl& matrix : OneLinear().Matrices()) matrices.push_back(matrix.name);
  EXPECT_THAT(matrices, ElementsAre("a.weight", "b.weight"));
  Tensors source = Checkpoint(2.0f), changed = Checkpoint(3.0f);
  const auto digest = Load(OneLinear(), &source)->digest();
  const auto other = ModelWeights::Load(OneLinear(), &changed, &backend_, {});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(digest, (*other)->digest());
}

TEST_F(ScaledWeightsTest, AreInTheKeyOfTheCache) {
  Tensors source = Checkpoint(2.0f), again = Checkpoint(2.0f);
  static_cast<void>(Load(OneLinear(), &source));
  ModelSpec other = OneLinear();
  other.logits.parts[1].scales = {"other.scales", {1, 1}};
  static_cast<void>(Load(other, &again));
  EXPECT_FALSE(again.read().empty()) << "another packing was taken for this one";
}

TEST_F(ScaledWeightsTest, WhatPacksNoScalesRefusesThemBeforeAnythingIsAllocatedOrRead) {
  for (const char* device : {"reference", "cpu"}) {
    const auto backend = CreateBackend({.device = device});
    ASSERT_TRUE(backend.ok()) << backend.status();
    const auto bytes = ModelWeights::Sizes(OneLinear(), **backend, {}, TensorType::kF32);
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kFailedPrecondition) << bytes.status();
    EXPECT_THAT(bytes.status().ToString(), testing::HasSubstr("come with scales")) << device;
    Tensors source = Checkpoint(2.0f);
    const auto loaded = ModelWeights::Load(OneLinear(), &source, backend->get(), {});
    EXPECT_EQ(loaded.status(), bytes.status());
    EXPECT_TRUE(source.read().empty());
  }
}

TEST_F(ScaledWeightsTest, AnotherFormatOfTheSameSizeIsPackedAgain) {
  Tensors source = Checkpoint(2.0f), again = Checkpoint(2.0f);
  static_cast<void>(Load(OneLinear(), &source));
  RowScaledBackend other("row scaled, other order");
  const auto weights =
      ModelWeights::Load(OneLinear(), &again, &other, {.cache_dir = cache_.path()});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_FALSE(again.read().empty()) << "bytes of another format were mapped";
}

// A model with an embedding and a norm, whose checkpoint has other numbers than it computes with.
ModelSpec ShiftedSpec(float scale, float offset) {
  ModelSpec spec = OneLinear();
  spec.embedding = {.table = {"e", {2, 2}}, .scale = scale};
  spec.final_norm = {.weight = {"n", {3}}, .bias = {}, .offset = offset};
  return spec;
}

Tensors ShiftedCheckpoint() {
  return Tensors({{"e", {1.25f, -0.5f, 0.3f, 100.0f}},
                  {"n", {-0.25f, 0.0f, 1e-3f}},
                  {"a.weight", std::vector<float>(6)},
                  {"a.scales", {1, 1}},
                  {"b.weight", std::vector<float>(3)},
                  {"b.scales", {1}}});
}

TEST_F(ScaledWeightsTest, TablesAndNormsArePackedAsTheyAreComputedWith) {
  constexpr float kScale = 5.671f;  // In bf16 5.65625, and 1.25 times them differ in bf16.
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Tensors source = ShiftedCheckpoint();
    const auto weights = ModelWeights::Load(ShiftedSpec(kScale, 1.0f), &source, &backend_,
                                            {.types = {.compute = dtype}});
    ASSERT_TRUE(weights.ok()) << weights.status();
    const void* const table = OnHost((*weights)->parts().embedding);
    int i = 0;
    for (const float number : {1.25f, -0.5f, 0.3f, 100.0f}) {
      if (dtype == DType::kF32) {
        EXPECT_EQ(static_cast<const float*>(table)[i++], number * kScale);
      } else {
        const Bfloat16 expected = ToBfloat16(ToFloat(ToBfloat16(number)) * 5.65625f);
        EXPECT_EQ(static_cast<const Bfloat16*>(table)[i++].bits, expected.bits) << number;
      }
    }
    const float* const norm = OnHost((*weights)->parts().final_norm.weight);
    EXPECT_THAT(std::vector<float>(norm, norm + 3), ElementsAre(0.75f, 1.0f, 1.0f + 1e-3f));
  }
}

TEST_F(ScaledWeightsTest, WhatIsDoneToTablesAndNormsIsInTheKeyOfTheCache) {
  Tensors source = ShiftedCheckpoint();
  static_cast<void>(Load(ShiftedSpec(2.0f, 1.0f), &source));
  for (const ModelSpec& other : {ShiftedSpec(3.0f, 1.0f), ShiftedSpec(2.0f, 0.0f)}) {
    Tensors again = ShiftedCheckpoint();
    static_cast<void>(Load(other, &again));
    EXPECT_FALSE(again.read().empty()) << "another packing was taken for this one";
  }
}

}  // namespace
}  // namespace tandem
