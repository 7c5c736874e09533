// Whole folders: weights, their cache and digest, dummy weights, and folders that are broken.

#include "runtime/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/create_backend.h"
#include "runtime/base/log.h"
#include "runtime/model/dummy_weights.h"
#include "runtime/model/kv_layout.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::HasSubstr;

std::string Tiny(const std::string& name) {
  return std::string(TANDEM_TEST_DATA) + "/tiny_models/" + name;
}

std::unique_ptr<Backend> Reference() {
  auto backend = CreateBackend({.device = "reference"});
  TANDEM_CHECK(backend.ok()) << backend.status().message();
  return *std::move(backend);
}

// Why the folder is refused; "accepted" if it is not.
std::string Refusal(const ModelOptions& options) {
  const auto backend = Reference();
  const auto model = Model::Load(options, backend.get());
  return model.ok() ? "accepted" : std::string(model.status().message());
}

TEST(ModelTest, DigestIsOfTheCheckpointNotOfItsPacking) {
  const auto backend = Reference();
  const std::string folder = Tiny("llama_gqa64_bf16_sharded");
  const auto f32 = Model::Load({.folder = folder, .dtype = "f32"}, backend.get());
  const auto bf16 = Model::Load({.folder = folder, .dtype = "bf16"}, backend.get());
  ASSERT_TRUE(f32.ok() && bf16.ok());
  EXPECT_EQ((*f32)->weights().digest(), (*bf16)->weights().digest());
  EXPECT_EQ((*f32)->Digest(), (*bf16)->Digest());
  EXPECT_GT((*f32)->weights().packed_bytes(), (*bf16)->weights().packed_bytes());
  const auto other = Model::Load({.folder = Tiny("llama_mha32_tied")}, backend.get());
  ASSERT_TRUE(other.ok());
  EXPECT_NE((*f32)->Digest(), (*other)->Digest());
}

TEST(ModelTest, DigestChangesWithOneWeightAndWithRope) {
  const auto backend = Reference();
  const auto digest = [&](const std::string& folder) {
    const auto model = Model::Load({.folder = folder}, backend.get());
    TANDEM_CHECK(model.ok()) << model.status().message();
    return (*model)->Digest();
  };
  const TempFolder folder;
  folder.CopyFrom(Tiny("llama_mha32_tied"));
  const std::string before = digest(folder.path());
  {
    std::fstream file(folder.path() + "/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x3E');
  }
  const std::string changed = digest(folder.path());
  EXPECT_NE(changed, before);
  std::ifstream config(folder.path() + "/config.json");
  std::string text((std::istreambuf_iterator<char>(config)), {});
  const size_t at = text.find("10000.0");
  ASSERT_NE(at, std::string::npos);
  folder.Write("config.json", text.replace(at, 7, "20000.0"));
  EXPECT_NE(digest(folder.path()), changed);
}

TEST(ModelTest, ComputesInTheCheckpointsTypeUnlessToldOtherwise) {
  const auto dtype = [](const char* asked, TensorType type) {
    return *Model::ComputeDType(asked, type);
  };
  EXPECT_EQ(dtype("auto", TensorType::kBF16), DType::kBF16);
  EXPECT_EQ(dtype("auto", TensorType::kF16), DType::kF32);
  EXPECT_EQ(dtype("auto", TensorType::kF32), DType::kF32);
  EXPECT_EQ(dtype("bf16", TensorType::kF32), DType::kBF16);
  EXPECT_EQ(dtype("f32", TensorType::kBF16), DType::kF32);
  EXPECT_THAT(Refusal({.folder = Tiny("gpt2_heads16"), .dtype = "int3"}),
              HasSubstr("dtype is \"int3\", want auto, f32 or bf16"));
}

TEST(ModelTest, SecondLoadMapsTheCachedPacking) {
  const auto backend = Reference();
  const TempFolder cache;
  const ModelOptions options{.folder = Tiny("gpt2_heads16"), .cache_dir = cache.path()};
  const auto first = Model::Load(options, backend.get());
  const auto second = Model::Load(options, backend.get());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE((*first)->weights().image().from_cache());
  EXPECT_TRUE((*second)->weights().image().from_cache());
  EXPECT_EQ((*first)->Digest(), (*second)->Digest());
  const auto a = (*first)->weights().image().payload();
  const auto b = (*second)->weights().image().payload();
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

TEST(ModelTest, WeightsBytesAreKnownBeforeLoading) {
  const auto backend = Reference();
  const ModelOptions options{.folder = Tiny("llama_gqa16_scaled_f16")};
  const auto bytes = Model::WeightsBytes(options, *backend);
  const auto model = Model::Load(options, backend.get());
  ASSERT_TRUE(bytes.ok() && model.ok());
  EXPECT_EQ(*bytes, (*model)->weights().packed_bytes());
}

TEST(ModelTest, KvBytesPerBlockFollowTheSizes) {
  const auto backend = Reference();
  const auto config = ModelConfig::Load(Tiny("llama_gqa64_bf16_sharded"));
  ASSERT_TRUE(config.ok());
  const auto f32 = KvBytesPerBlock(*config, *backend, DType::kF32, 16);
  const auto bf16 = KvBytesPerBlock(*config, *backend, DType::kBF16, 32);
  ASSERT_TRUE(f32.ok() && bf16.ok());
  EXPECT_EQ(*f32, size_t{2} * 2 * 2 * 16 * 64 * 4);  // Layers, K and V, heads, tokens, size, f32.
  EXPECT_EQ(*bf16, *f32);
  EXPECT_EQ(KvBytesPerBlock(*config, *backend, DType::kF32, 24).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ModelTest, RefusesFoldersWithMissingOrMisshapenTensors) {
  const TempFolder missing;
  missing.CopyFrom(Tiny("llama_mha32_tied"));
  missing.Write("model.safetensors",
                SafetensorsText(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
  EXPECT_THAT(Refusal({.folder = missing.path()}),
              HasSubstr("tensor \"model.embed_tokens.weight\" is missing"));
  const TempFolder misshapen;
  misshapen.CopyFrom(Tiny("llama_mha32_tied"));
  std::ifstream config(misshapen.path() + "/config.json");
  std::string text((std::istreambuf_iterator<char>(config)), {});
  const size_t at = text.find("\"intermediate_size\": 64");
  ASSERT_NE(at, std::string::npos);
  misshapen.Write("config.json", text.replace(at, 23, "\"intermediate_size\": 48"));
  EXPECT_THAT(Refusal({.folder = misshapen.path()}),
              HasSubstr("gate_proj.weight\" has shape [64, 64], config.json asks for [48, 64]"));
}

TEST(ModelTest, RefusesHeadSizesThatNoKernelHasBeforePacking) {
  const TempFolder folder;
  folder.Write("config.json",
               R"({"architectures":["LlamaForCausalLM"],"hidden_size":32,"intermediate_size":48,
                   "num_hidden_layers":1,"num_attention_heads":2,"vocab_size":64,"head_dim":384})");
  // There is no checkpoint: the head size is found first.
  EXPECT_THAT(Refusal({.folder = folder.path()}), HasSubstr("384"));
}

TEST(ModelTest, DummyWeightsAreTheSameEveryTimeAndDifferByTensor) {
  const auto config = ModelConfig::Load(std::string(TANDEM_TEST_DATA) + "/tinyllama_1b_shape");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_layers, 22);
  EXPECT_EQ(config->NumParameters(), 1'100'048'384);
  const auto source = MakeDummyWeights(*config);
  const auto again = MakeDummyWeights(*config);
  const std::vector<int64_t> shape = {64, 32};
  const auto a = source->Tensor("model.layers.0.mlp.up_proj.weight", shape);
  const auto b = again->Tensor("model.layers.0.mlp.up_proj.weight", shape);
  const auto c = source->Tensor("model.layers.1.mlp.up_proj.weight", shape);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  const auto text = [](const TensorView& view) {
    return std::string(view.bytes.begin(), view.bytes.end());
  };
  EXPECT_EQ(text(*a), text(*b));
  EXPECT_NE(text(*a), text(*c));
  // Fixed for good: streams of dummy models must not change with a release.
  const Sha256Digest digest = Sha256Of(text(*a));
  EXPECT_EQ(HexOf(digest.data(), 8), "fd3b0f7ec2e2d5ec");
}

TEST(ModelTest, DummyModelsLoadInEveryCheckpointType) {
  const TempFolder folder;
  const std::string sizes =
      R"("architectures":["LlamaForCausalLM"],"hidden_size":32,"intermediate_size":48,
         "num_hidden_layers":2,"num_attention_heads":2,"vocab_size":64,"torch_dtype":)";
  std::vector<std::string> digests;
  for (const char* type : {"float32", "float16", "bfloat16"}) {
    folder.Write("config.json", "{" + sizes + "\"" + type + "\"}");
    const auto backend = Reference();
    const auto model =
        Model::Load({.folder = folder.path(), .load_format = LoadFormat::kDummy}, backend.get());
    ASSERT_TRUE(model.ok()) << model.status().message();
    digests.push_back((*model)->Digest());
  }
  EXPECT_NE(digests[0], digests[1]);
  EXPECT_NE(digests[1], digests[2]);
}

}  // namespace
}  // namespace tandem
