// Checkpoints in 8-bit floats, as those who write them do, against the same weights written wide,
// which are made here from the definition of E4M3.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/api/half.h"
#include "runtime/base/random.h"
#include "runtime/model/float8_matrix.h"
#include "tests/support/e4m3_definition.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/runtime/model/float8_checkpoints.h"
#include "tests/unit/runtime/model/stored_tensors.h"

namespace tandem {
namespace {

using testing::HasSubstr;

TEST(Float8CheckpointTest, EveryFormatIsTheSameWeightsMultipliedOut) {
  for (const Format& format : kFormats) {
    for (const char* kept : {"f32", "bf16", "bf16_int8", "bf16_int4"}) {
      const Pair pair = CheckpointsOf(format, "F32");
      const auto logits = LogitsOf(pair.float8, format.config, kept);
      ASSERT_EQ(logits.size(), 7u * kVocabulary);
      EXPECT_TRUE(std::isfinite(logits[0]));
      EXPECT_EQ(logits, LogitsOf(pair.wide, "", kept)) << format.name << " as " << kept;
    }
    const Pair pair = CheckpointsOf(format, "BF16");
    EXPECT_EQ(LogitsOf(pair.float8, format.config, "bf16"), LogitsOf(pair.wide, "", "bf16"))
        << format.name;
  }
}

// Which are in 8 bits, their tensors say.
TEST(Float8CheckpointTest, SomeMatricesMayBeWideAndTheOutputProjectionNarrow) {
  const Format& format = kFormats[0];
  Pair pair = CheckpointsOf(format, "F32");
  const std::string wide = "model.layers.0.mlp.up_proj.", last = "lm_head.";
  const std::vector<uint8_t> numbers(kVocabulary * kHidden, 0x39);  // 1.125
  pair.float8[wide + "weight"] = pair.wide[wide + "weight"];
  pair.float8.erase(wide + "weight_scale_inv");
  pair.float8[last + "weight"] = Stored("F8_E4M3", {kVocabulary, kHidden}, numbers);
  pair.float8[last + "weight_scale_inv"] = Stored("F32", {1, 1}, std::vector<float>{2});
  pair.wide[last + "weight"] =
      Stored("F32", {kVocabulary, kHidden}, std::vector<float>(kVocabulary * kHidden, 2.25f));
  EXPECT_EQ(LogitsOf(pair.float8, format.config, "f32"), LogitsOf(pair.wide, "", "f32"));
}

TEST(Float8CheckpointTest, WhatIsNotInEightBitsDecidesWhatIsComputedIn) {
  StoredTensors tensors = CheckpointsOf(kFormats[0], "F32").float8;
  const auto backend = CreateBackend({.device = "cpu"});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto types = [&] {
    TempFolder folder;
    WriteCheckpoint(folder, tensors, kFormats[0].config);
    return NamesOf(Model::Plan({.folder = folder.path()}, **backend)->types);
  };
  EXPECT_EQ(types(), "compute=f32 weights=f32 kv=f32");
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    std::vector<float> zeros(kVocabulary * kHidden);
    tensors[name] = StoredAs("BF16", {kVocabulary, kHidden}, &zeros);
  }
  EXPECT_EQ(types(), "compute=bf16 weights=bf16 kv=bf16");
}

TEST(Float8CheckpointTest, DummyWeightsHaveNoScales) {
  TempFolder folder;
  WriteConfig(folder, kFormats[0].config);
  EXPECT_EQ(LoadRefusal({.folder = folder.path(), .load_format = LoadFormat::kDummy}), "loaded");
}

TEST(Float8MatrixTest, ANotANumberStaysOneAndAProductRoundsOnce) {
  const std::vector<uint8_t> numbers = {0x7F, 0xFF, 0x00, 0x80, 0x3B, 0x01};
  const std::vector<float> scales = {0x1.fffffep+0f, 0x1p-140f};
  const auto bytes = [](const auto& vector) {
    return std::span(reinterpret_cast<const uint8_t*>(vector.data()),
                     vector.size() * sizeof(vector[0]));
  };
  const std::vector<float> weights = ScaleFloat8({.present = true, .outputs = 1, .inputs = 5},
                                                 {TensorType::kF8E4M3, {1, 6}, bytes(numbers)},
                                                 {TensorType::kF32, {1, 2}, bytes(scales)});
  ASSERT_EQ(weights.size(), 6u);
  EXPECT_TRUE(std::isnan(weights[0]) && std::isnan(weights[1]));
  EXPECT_TRUE(weights[2] == 0 && !std::signbit(weights[2]));
  EXPECT_TRUE(weights[3] == 0 && std::signbit(weights[3]));
  EXPECT_EQ(weights[4], static_cast<float>(1.375 * 0x1.fffffep+0));
  EXPECT_EQ(weights[5], 0x1p-149f) << "denormals are kept";
}

TEST(Float8CheckpointTest, ScalesAndBlocksAreInTheDigestAndInTheKeyOfTheCache) {
  StoredTensors tensors = CheckpointsOf(kFormats[0], "F32").float8;
  TempFolder folder, cache;
  const auto backend = CreateBackend({.device = "cpu"});
  ASSERT_TRUE(backend.ok()) << backend.status();
  std::set<std::string> digests;
  const auto load = [&] {
    const auto model =
        Model::Load({.folder = folder.path(), .cache_dir = cache.path()}, backend->get());
    ASSERT_TRUE(model.ok()) << model.status();
    digests.insert((*model)->Digest());
  };
  const auto images = [&] {
    int count = 0;
    for (const auto& file : std::filesystem::directory_iterator(cache.path())) {
      count += file.path().extension() != ".lock";
    }
    return count;
  };
  WriteCheckpoint(folder, tensors, kFormats[0].config);
  load();
  const int one = images();
  // As many blocks, of another size: no tensor has changed.
  WriteConfig(folder, R"({"quant_method":"fp8","weight_block_size":[150,150]})");
  load();
  EXPECT_EQ(digests.size(), 2u);
  EXPECT_EQ(images(), one + 1);
  const std::string name = "model.layers.0.mlp.down_proj.weight_scale_inv";
  tensors[name].bytes[2] ^= 1;
  WriteCheckpoint(folder, tensors, kFormats[0].config);
  load();
  EXPECT_EQ(digests.size(), 3u);
}

class Float8RefusalTest : public testing::Test {
 protected:
  std::string Refusal(const StoredTensors& tensors, const char* quantisation) {
    TempFolder folder, cache;
    WriteCheckpoint(folder, tensors, quantisation);
    const std::string refusal = LoadRefusal({.folder = folder.path(), .cache_dir = cache.path()});
    began_to_pack_ = !std::filesystem::is_empty(cache.path());
    return refusal;
  }

  bool began_to_pack_ = false;
  const std::string name_ = "model.layers.0.mlp.down_proj.";
};

TEST_F(Float8RefusalTest, ScalesThatAreMissingOrOfAnotherShape) {
  for (const Format& format : kFormats) {
    const StoredTensors good = CheckpointsOf(format, "F32").float8;
    const std::string scales = name_ + format.scales;
    StoredTensors tensors = good;
    tensors[scales] = Stored("F32", {2, 5}, std::vector<float>(10));
    EXPECT_THAT(
        Refusal(tensors, format.config),
        HasSubstr(absl::StrCat("\"", scales, "\" has shape [2, 5], config.json asks for [")))
        << format.name;
    EXPECT_FALSE(began_to_pack_);
    tensors = good;
    tensors.erase(scales);
    EXPECT_THAT(Refusal(tensors, format.config), HasSubstr("weight_scale\" is missing"));
    EXPECT_FALSE(began_to_pack_);
  }
}

TEST_F(Float8RefusalTest, OtherTypesByTheirName) {
  const Format& format = kFormats[0];
  const StoredTensors good = CheckpointsOf(format, "F32").float8;
  StoredTensors tensors = good;
  tensors[name_ + "weight"].dtype = "F8_E5M2";
  EXPECT_THAT(Refusal(tensors, format.config), HasSubstr("down_proj.weight\" is F8_E5M2"));
  tensors = good;
  tensors[name_ + "weight_scale_inv"].dtype = "I32";
  EXPECT_THAT(Refusal(tensors, format.config), HasSubstr("weight_scale_inv\" is of type I32"));
  // No table, and no matrix where config.json does not say so.
  tensors = good;
  const std::vector<uint8_t> numbers(kVocabulary * kHidden);
  tensors["model.embed_tokens.weight"] = Stored("F8_E4M3", {kVocabulary, kHidden}, numbers);
  EXPECT_THAT(Refusal(tensors, format.config),
              HasSubstr("embed_tokens.weight\" is of type F8_E4M3; supported are F32"));
  tensors = CheckpointsOf(format, "F32").wide;
  tensors["lm_head.weight"] = Stored("F8_E4M3", {kVocabulary, kHidden}, numbers);
  EXPECT_THAT(Refusal(tensors, ""), HasSubstr("lm_head.weight\" is of type F8_E4M3"));
}

TEST_F(Float8RefusalTest, TensorsThatWouldChangeTheNumbers) {
  const Format& format = kFormats[0];
  const StoredTensors good = CheckpointsOf(format, "F32").float8;
  const StoredTensor scale = Stored("F32", {}, std::vector<float>{1});
  for (const char* name :
       {"self_attn.k_scale", "mlp.down_proj.weight_scale", "input_layernorm.input_scale"}) {
    StoredTensors tensors = good;
    tensors[absl::StrCat("model.layers.0.", name)] = scale;
    EXPECT_THAT(Refusal(tensors, format.config), HasSubstr("would change the numbers")) << name;
  }
}

}  // namespace
}  // namespace tandem
