// Wrong sizes, strides and missing pointers are refused alike by every backend, with the numbers.

#include "kernels/support/validate.h"

#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"

namespace tandem {
namespace {

class ValidateTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    device_ = MakeDevice(GetParam());
    if (device_ == nullptr) GTEST_SKIP() << GetParam() << " is not on this machine";
    format_ = *device_->backend().GetKvTileFormat({16, 8, KvType::kF32}, DType::kF32);
    pool_ = *device_->backend().AllocatePinned(1 << 16);
    kv_ = {.base = pool_.data(),
           .block_stride_bytes = KvLayerBytes(format_.tile_bytes, 2),
           .layer_offset_bytes = 0,
           .tile_bytes = format_.tile_bytes,
           .num_kv_heads = 2,
           .shape = {16, 8, KvType::kF32}};
    decode_ = {.query = data_,
               .kv = kv_,
               .block_table = ints_,
               .num_tokens = ints_ + 1,
               .output = data_ + 64,
               .num_sequences = 1,
               .max_blocks = 1,
               .num_heads = 4,
               .compute_dtype = DType::kF32,
               .softmax_scale = 1.0f};
    ints_[1] = 1;
  }

  static void ExpectRefused(const absl::Status& status, const std::string& part) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.ToString().find(part), std::string::npos) << status;
  }

  std::unique_ptr<TestDevice> device_;
  KvTileFormat format_;
  PinnedBuffer pool_;
  HostKvLayerView kv_;
  HostDecodeAttentionArgs decode_;
  float data_[256] = {};
  int32_t ints_[4] = {};
};

TEST_P(ValidateTest, RowOperations) {
  ExpectRefused(device_->RmsNorm({.input = data_,
                                  .weight = data_,
                                  .output = data_,
                                  .num_rows = -1,
                                  .features = 4,
                                  .epsilon = 0,
                                  .output_dtype = DType::kF32}),
                "-1");
  ExpectRefused(device_->RmsNorm({.input = data_,
                                  .weight = data_,
                                  .output = data_,
                                  .num_rows = 1,
                                  .features = 0,
                                  .epsilon = 0,
                                  .output_dtype = DType::kF32}),
                "features is 0");
  ExpectRefused(device_->LayerNorm({.input = data_,
                                    .weight = data_,
                                    .bias = nullptr,
                                    .output = data_,
                                    .num_rows = 1,
                                    .features = 4,
                                    .epsilon = 0,
                                    .output_dtype = DType::kF32}),
                "bias is null");
  ExpectRefused(device_->Embedding({.ids = ints_,
                                    .table = data_,
                                    .position_table = data_,
                                    .output = data_,
                                    .num_rows = 1,
                                    .features = 4,
                                    .table_dtype = DType::kF32}),
                "positions is null");
  ExpectRefused(device_->Add({.accumulator = data_, .addend = nullptr, .count = 4}),
                "addend is null");
  for (const auto& [cap, complaint] :
       {std::pair{0.0f, "cap is 0"}, {-1.0f, "cap is -1"}, {std::nanf(""), "cap is nan"}}) {
    ExpectRefused(device_->SoftCap({.values = data_, .count = 4, .cap = cap}), complaint);
  }
  ExpectRefused(device_->SoftCap({.values = nullptr, .count = 4, .cap = 1}), "values is null");
  ExpectRefused(device_->GatherRows({.input = data_,
                                     .rows = ints_,
                                     .output = data_,
                                     .num_rows = 1,
                                     .num_input_rows = 0,
                                     .features = 4,
                                     .dtype = DType::kF32}),
                "num_input_rows is 0");
  ExpectRefused(device_->RotaryTable({.positions = ints_,
                                      .inv_freq = data_,
                                      .cos = data_,
                                      .sin = data_,
                                      .num_tokens = 1,
                                      .head_dim = 7}),
                "head_dim");
}

TEST_P(ValidateTest, NormsInFrontOfLayers) {
  const LinearSpec spec{.in_features = 8,
                        .out_features = 4,
                        .weight_type = WeightType::kInt8,
                        .compute_dtype = DType::kBF16,
                        .output_dtype = DType::kF32};
  const std::vector<Bfloat16> weights(32);
  Layer layer;
  ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, spec, {{weights.data(), 4, DType::kBF16}}, &layer));
  const HostRmsNormArgs norm{.input = data_,
                             .weight = data_,
                             .output = data_ + 64,
                             .num_rows = 2,
                             .features = 8,
                             .epsilon = 1e-5f,
                             .output_dtype = DType::kBF16};
  const HostLinearArgs args{
      .op = layer.op.get(), .input = data_ + 64, .output = data_ + 128, .num_rows = 2};
  ASSERT_OK(device_->RmsNormLinear(norm, args));
  HostRmsNormArgs wrong = norm;
  wrong.num_rows = 1;
  ExpectRefused(device_->RmsNormLinear(wrong, args),
                "1 rows of 8 numbers of type bf16, the layer takes 2 of 8 of type bf16");
  wrong = norm;
  wrong.features = 7;
  ExpectRefused(device_->RmsNormLinear(wrong, args), "2 rows of 7 numbers");
  wrong = norm;
  wrong.output_dtype = DType::kF32;
  ExpectRefused(device_->RmsNormLinear(wrong, args), "of type f32, the layer");
  wrong = norm;
  wrong.output = data_ + 32;
  ExpectRefused(device_->RmsNormLinear(wrong, args), "a norm's output is at");
  ExpectRefused(device_->LayerNormLinear({.input = data_,
                                          .weight = data_,
                                          .bias = data_,
                                          .output = data_ + 64,
                                          .num_rows = 3,
                                          .features = 8,
                                          .epsilon = 1e-5f,
                                          .output_dtype = DType::kBF16},
                                         args),
                "3 rows of 8");
}

TEST_P(ValidateTest, LinearLayers) {
  const LinearSpec spec{.in_features = 8,
                        .out_features = 4,
                        .weight_type = WeightType::kF32,
                        .compute_dtype = DType::kF32,
                        .output_dtype = DType::kF32};
  LinearSpec wrong = spec;
  wrong.in_features = 0;
  ExpectRefused(device_->backend().GetPackedFormat(wrong).status(), "in_features is 0");
  wrong.weight_type = WeightType::kInt8;
  wrong.in_features = (1 << 17) + 1;
  ExpectRefused(device_->backend().GetPackedFormat(wrong).status(),
                "in_features of int8 weights is 131073, must be 1 to 131072");
  wrong = spec;
  wrong.outlier_threshold = 6;
  ExpectRefused(device_->backend().GetPackedFormat(wrong).status(),
                "outlier_threshold of f32 weights is 6, must be 0");
  wrong.weight_type = WeightType::kInt8;
  for (const float threshold : {-6.0f, 0x1p-127f, 1.1e6f, INFINITY, NAN}) {
    wrong.outlier_threshold = threshold;
    ExpectRefused(device_->backend().GetPackedFormat(wrong).status(),
                  "outlier_threshold of int8 weights is");
  }
  wrong = spec;
  wrong.output_dtype = DType::kBF16;
  ExpectRefused(device_->backend().GetPackedFormat(wrong).status(), "bf16");
  wrong = spec;
  wrong.group = 32;
  ExpectRefused(device_->backend().GetPackedFormat(wrong).status(),
                "group of f32 weights is 32, must be 0");
  wrong.weight_type = WeightType::kInt4;
  for (const int64_t group : {0, 16, 96, 256}) {
    wrong.group = group;
    ExpectRefused(device_->backend().GetPackedFormat(wrong).status(), "must be one of 32, 64, 128");
  }
  const size_t bytes = device_->backend().GetPackedFormat(spec)->size_bytes;
  const PinnedBuffer packed = *device_->backend().AllocatePinned(bytes + 64);
  const WeightPart three{data_, 3, DType::kF32};
  ExpectRefused(device_->backend().PackLinear(spec, {&three, 1}, {packed.data(), bytes}),
                "3 out_features");
  const WeightPart all{data_, 4, DType::kF32};
  ExpectRefused(device_->backend().PackLinear(spec, {&all, 1}, {packed.data(), bytes - 1}),
                std::to_string(bytes));
  ExpectRefused(device_->backend().PackLinear(spec, {&all, 1}, {packed.data() + 4, bytes}),
                "aligned");
  WeightPart scaled = all;
  scaled.scales = {data_, 4};
  ExpectRefused(device_->backend().PackLinear(spec, {&scaled, 1}, {packed.data(), bytes}),
                "4 scales, the layer is packed without");
  // Only 4 bits and 8-bit floats keep scales.
  LinearSpec with_scales = spec;
  with_scales.scaled = true;
  const absl::Status refused = device_->backend().GetPackedFormat(with_scales).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_NE(refused.ToString().find("come with scales"), std::string::npos) << refused;
  LinearSpec fp8 = with_scales;
  fp8.weight_type = WeightType::kFp8;
  ExpectRefused(device_->backend().GetPackedFormat(fp8).status(), "group is 0, must be 1 to");
  fp8.group = 64;
  const absl::Status in_f32 = device_->backend().GetPackedFormat(fp8).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(in_f32)) << in_f32;
  EXPECT_NE(in_f32.ToString().find("multiplied in bf16, not in f32"), std::string::npos) << in_f32;
  fp8.compute_dtype = DType::kBF16;
  fp8.scaled = false;
  const absl::Status bare = device_->backend().GetPackedFormat(fp8).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(bare)) << bare;
  EXPECT_NE(bare.ToString().find("come without scales"), std::string::npos) << bare;
  fp8.scaled = true;
  if (const auto format = device_->backend().GetPackedFormat(fp8); format.ok()) {
    const PinnedBuffer larger = *device_->backend().AllocatePinned(format->size_bytes);
    const uint8_t zeros[4] = {};
    scaled.zeros = zeros;
    ExpectRefused(
        device_->backend().PackLinear(fp8, {&scaled, 1}, {larger.data(), format->size_bytes}),
        "4 scales and 4 zeros, must have 4 and 0");
    scaled.zeros = {};
  } else {
    EXPECT_TRUE(absl::IsFailedPrecondition(format.status())) << format.status();
  }
  with_scales.weight_type = WeightType::kInt4;
  with_scales.group = 32;
  with_scales.layout = WeightLayout::kInOut;
  EXPECT_TRUE(absl::IsFailedPrecondition(device_->backend().GetPackedFormat(with_scales).status()));
  with_scales.layout = WeightLayout::kOutIn;
  if (const auto format = device_->backend().GetPackedFormat(with_scales); format.ok()) {
    const PinnedBuffer larger = *device_->backend().AllocatePinned(format->size_bytes);
    const std::span<std::byte> to(larger.data(), format->size_bytes);
    const uint8_t zeros[5] = {};
    scaled.zeros = {zeros, 5};
    ExpectRefused(device_->backend().PackLinear(with_scales, {&scaled, 1}, to),
                  "4 scales and 5 zeros, must have 4 and 4");
    scaled.scales = {data_, 5};
    ExpectRefused(device_->backend().PackLinear(with_scales, {&scaled, 1}, to),
                  "5 scales and 5 zeros, must have 4 and 4");
    scaled.scales = {data_, 4};
    scaled.zeros = {};
    ExpectRefused(device_->backend().PackLinear(with_scales, {&scaled, 1}, to),
                  "4 scales and 0 zeros, must have 4 and 4");
  } else {
    EXPECT_TRUE(absl::IsFailedPrecondition(format.status())) << format.status();
  }
  const DeviceBuffer placed = *device_->backend().PlaceWeights({packed.data(), bytes});
  ExpectRefused(device_->backend().PrepareLinear(spec, placed.data(), bytes - 1).status(),
                std::to_string(bytes - 1));
  ExpectRefused(device_->backend().PrepareLinear(spec, placed.data() + 4, bytes).status(),
                "aligned");
  ExpectRefused(device_->Linear({.op = nullptr, .input = data_, .output = data_, .num_rows = 1}),
                "op is null");
  const auto op = device_->backend().PrepareLinear(spec, placed.data(), bytes);
  ASSERT_TRUE(op.ok()) << op.status();
  ExpectRefused(
      device_->Linear({.op = op->get(), .input = nullptr, .output = data_, .num_rows = 1}),
      "input is null");
  EXPECT_TRUE(
      device_->Linear({.op = op->get(), .input = nullptr, .output = nullptr, .num_rows = 0}).ok());
}

TEST_P(ValidateTest, LayersThatAddOrActivate) {
  const LinearSpec spec{.in_features = 8,
                        .out_features = 4,
                        .weight_type = WeightType::kF32,
                        .compute_dtype = DType::kF32,
                        .output_dtype = DType::kF32};
  const WeightPart all{data_, 4, DType::kF32};
  LinearSpec wrong = spec;
  wrong.gated = true;
  ExpectRefused(device_->backend().GetPackedFormat(wrong).status(),
                "4 outputs are gates and ups without an activation");
  wrong.activation = ActivationFunction::kSilu;
  wrong.out_features = 5;
  ExpectRefused(device_->backend().GetPackedFormat(wrong).status(),
                "5 outputs are gates and ups with an activation, must be with one and an even");
  LinearSpec narrow = spec;
  narrow.weight_type = WeightType::kBF16;
  narrow.compute_dtype = narrow.output_dtype = DType::kBF16;
  Layer bf16;
  ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, narrow, {all}, &bf16));
  ExpectRefused(device_->Linear({.op = bf16.op.get(),
                                 .input = data_,
                                 .output = data_,
                                 .num_rows = 1,
                                 .adds_to_output = true}),
                "outputs are bf16, must be f32 to be added");
  LinearSpec activated = spec;
  activated.activation = ActivationFunction::kSilu;
  Layer silu;
  ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, activated, {all}, &silu));
  ExpectRefused(device_->Linear({.op = silu.op.get(),
                                 .input = data_,
                                 .output = data_,
                                 .num_rows = 1,
                                 .adds_to_output = true}),
                "outputs are f32 and activated, must be f32 to be added");
}

TEST_P(ValidateTest, KvTiles) {
  ExpectRefused(device_->backend().GetKvTileFormat({8, 64, KvType::kF32}, DType::kF32).status(),
                "block_tokens is 8");
  ExpectRefused(device_->backend().GetKvTileFormat({24, 64, KvType::kF32}, DType::kF32).status(),
                "block_tokens is 24");
  ExpectRefused(device_->backend().GetKvTileFormat({16, 63, KvType::kF32}, DType::kF32).status(),
                "head_dim is 63");
  ExpectRefused(device_->backend().GetKvTileFormat({16, 258, KvType::kF32}, DType::kF32).status(),
                "head_dim is 258");
  const auto small = device_->backend().GetKvTileFormat({16, 64, KvType::kBF16}, DType::kBF16);
  const auto large = device_->backend().GetKvTileFormat({32, 64, KvType::kBF16}, DType::kBF16);
  EXPECT_EQ(small->tile_bytes, 16u * 64 * 2);
  EXPECT_EQ(large->tile_bytes, 2 * small->tile_bytes);
  EXPECT_EQ(small->id, large->id);
}

TEST_P(ValidateTest, Attention) {
  EXPECT_TRUE(device_->DecodeAttention(decode_).ok());
  HostDecodeAttentionArgs wrong = decode_;
  wrong.num_heads = 3;
  ExpectRefused(device_->DecodeAttention(wrong), "2 KV heads do not divide 3");
  wrong = decode_;
  wrong.num_sequences = -2;
  ExpectRefused(device_->DecodeAttention(wrong), "num_sequences is -2");
  wrong = decode_;
  wrong.max_blocks = 0;
  ExpectRefused(device_->DecodeAttention(wrong), "max_blocks is 0");
  wrong = decode_;
  wrong.window = -1;
  ExpectRefused(device_->DecodeAttention(wrong), "window is -1");
  wrong.window = (int64_t{1} << 31) + 1;
  ExpectRefused(device_->DecodeAttention(wrong), "window is 2147483649");
  wrong = decode_;
  wrong.kv.base = nullptr;
  ExpectRefused(device_->DecodeAttention(wrong), "kv.base is null");
  wrong = decode_;
  wrong.block_table = nullptr;
  ExpectRefused(device_->DecodeAttention(wrong), "block_table is null");
  wrong = decode_;
  wrong.kv.tile_bytes += 64;
  ExpectRefused(device_->DecodeAttention(wrong), std::to_string(wrong.kv.tile_bytes));
  wrong = decode_;
  wrong.kv.layer_offset_bytes = 64;
  ExpectRefused(device_->DecodeAttention(wrong), "does not fit");
  wrong = decode_;
  wrong.kv.shape.block_tokens = 17;
  ExpectRefused(device_->DecodeAttention(wrong), "block_tokens is 17");
  HostPrefillAttentionArgs prefill{.query = data_,
                                   .kv = kv_,
                                   .block_table = ints_,
                                   .query_start = nullptr,
                                   .num_cached = ints_,
                                   .output = data_,
                                   .num_sequences = 1,
                                   .max_blocks = 1,
                                   .num_heads = 4,
                                   .compute_dtype = DType::kF32,
                                   .softmax_scale = 1.0f};
  ExpectRefused(device_->PrefillAttention(prefill), "query_start is null");
  prefill.window = -5;
  ExpectRefused(device_->PrefillAttention(prefill), "window is -5");
  const int64_t slot = 0;
  HostRotaryKvWriteArgs write{.query = data_,
                              .key = data_,
                              .value = data_,
                              .input_stride = 8,
                              .slots = &slot,
                              .kv = kv_,
                              .query_out = data_ + 128,
                              .num_tokens = 1,
                              .num_heads = 4,
                              .compute_dtype = DType::kF32};
  ExpectRefused(device_->RotaryKvWrite(write), "input_stride is 8");
  write.input_stride = 64;
  write.cos = data_;
  ExpectRefused(device_->RotaryKvWrite(write), "cos and sin");
  write.cos = nullptr;
  write.key_norm = data_;
  ExpectRefused(device_->RotaryKvWrite(write), "query_norm and key_norm");
  ExpectRefused(device_->CopyBlocks({.base = nullptr,
                                     .block_stride_bytes = 64,
                                     .sources = ints_,
                                     .destinations = ints_ + 1,
                                     .count = 1}),
                "base is null");
  ExpectRefused(device_->ChecksumBlocks({.base = kv_.base,
                                         .block_stride_bytes = 64,
                                         .blocks = ints_,
                                         .checksums = nullptr,
                                         .count = 1}),
                "checksums is null");
  ExpectRefused(device_->DiscardBlocks(
                    {.base = kv_.base, .block_stride_bytes = 64, .blocks = nullptr, .count = 1}),
                "blocks is null");
}

TEST_P(ValidateTest, MemoryForAPool) {
  Backend& backend = device_->backend();
  ExpectRefused(backend.AllocatePool(1 << 17, {pool_.data(), 1 << 16}).status(), "65536");
  ExpectRefused(backend.AllocatePool(64, {pool_.data() + 8, 1 << 15}).status(), "aligned");
  EXPECT_EQ(backend.AllocatePool(1 << 15, {pool_.data(), 1 << 16})->size_bytes(), size_t{1} << 15);
  EXPECT_EQ(backend.AllocatePool(1 << 15, {})->size_bytes(), size_t{1} << 15);
  if (GetParam() == "fenced") return;
  const auto elsewhere =
      backend.AllocatePool(1 << 15, {pool_.data(), 1 << 16, MemoryKind::kDevice});
  EXPECT_TRUE(absl::IsFailedPrecondition(elsewhere.status())) << elsewhere.status();
}

INSTANTIATE_TEST_SUITE_P(Reference, ValidateTest, testing::Values("reference"), DeviceName);
INSTANTIATE_TEST_SUITE_P(All, ValidateTest, testing::ValuesIn(TestedDevices()), DeviceName);
INSTANTIATE_TEST_SUITE_P(Fenced, ValidateTest, testing::Values("fenced"), DeviceName);

}  // namespace
}  // namespace tandem
