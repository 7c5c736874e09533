// Whole folders: weights, their cache and digest, dummy weights, and folders that are broken.

#include "runtime/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "kernels/create_backend.h"
#include "runtime/base/log.h"
#include "runtime/base/small_file.h"
#include "runtime/model/dummy_weights.h"
#include "runtime/model/kv_layout.h"
#include "runtime/model/weights.h"
#include "tests/support/forwarding_backend.h"
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

TEST(ModelTest, DigestChangesWithTheEpsilonOfNorms) {
  const auto backend = Reference();
  const TempFolder folder;
  folder.CopyFrom(Tiny("llama_mha32_tied"));
  const std::string config = ReadSmallFile(folder.path() + "/config.json", 1 << 20).value();
  std::set<std::string> digests;
  for (const char* epsilon : {"1e-05", "1e-06"}) {
    folder.Write("config.json", absl::StrReplaceAll(config, {{"1e-05", epsilon}}));
    const auto model = Model::Load({.folder = folder.path()}, backend.get());
    ASSERT_TRUE(model.ok()) << model.status().message();
    digests.insert((*model)->Digest());
  }
  EXPECT_EQ(digests.size(), 2u);
}

TEST(ModelTest, DigestChangesWithTheWindowOfOneLayer) {
  const auto backend = Reference();
  const TempFolder folder;
  folder.CopyFrom(Tiny("qwen3_gqa24_window_of_first"));
  const std::string config = ReadSmallFile(folder.path() + "/config.json", 1 << 20).value();
  using Changes = std::vector<std::pair<std::string, std::string>>;
  const std::string first = R"("sliding_attention",
  "full_attention")";
  std::set<std::string> digests;
  for (const Changes& changes :
       {Changes{}, Changes{{R"("sliding_window": 7)", R"("sliding_window": 8)"}},
        Changes{{first, R"("full_attention", "sliding_attention")"}},
        Changes{{first, R"("full_attention", "full_attention")"}}}) {
    folder.Write("config.json", absl::StrReplaceAll(config, changes));
    const auto model = Model::Load({.folder = folder.path()}, backend.get());
    ASSERT_TRUE(model.ok()) << model.status().message();
    digests.insert((*model)->Digest());
  }
  EXPECT_EQ(digests.size(), 4u);
}

TEST(ModelTest, DigestChangesWithTheScaleOfQueriesAndWithEachCap) {
  const auto backend = Reference();
  const TempFolder folder;
  folder.CopyFrom(Tiny("gemma2_gqa16_window7"));
  const std::string config = ReadSmallFile(folder.path() + "/config.json", 1 << 20).value();
  using Changes = std::vector<std::pair<std::string, std::string>>;
  std::set<std::string> digests;
  for (const Changes& changes :
       {Changes{}, Changes{{R"("query_pre_attn_scalar": 24)", R"("query_pre_attn_scalar": 25)"}},
        Changes{{R"("attn_logit_softcapping": 5.0)", R"("attn_logit_softcapping": 3.0)"}},
        Changes{{R"("final_logit_softcapping": 3.0)", R"("final_logit_softcapping": 5.0)"}},
        Changes{
            {R"("hidden_activation": "gelu_pytorch_tanh")", R"("hidden_activation": "silu")"}}}) {
    folder.Write("config.json", absl::StrReplaceAll(config, changes));
    const auto model = Model::Load({.folder = folder.path()}, backend.get());
    ASSERT_TRUE(model.ok()) << model.status().message();
    digests.insert((*model)->Digest());
  }
  EXPECT_EQ(digests.size(), 5u);
}

// A folder with Tiny("llama_mha32_tied")'s config.json, changed by `replace`, and a checkpoint of
// zeros: `tensors` beside those that the model needs, whose type is `types`' or else F32.
class ZeroCheckpoint {
 public:
  using Types = std::map<std::string, std::string>;
  using Shapes = std::map<std::string, std::vector<int64_t>>;

  explicit ZeroCheckpoint(const Types& types, const Shapes& tensors = {},
                          const std::vector<std::pair<const char*, const char*>>& replace = {}) {
    std::string config = ReadSmallFile(Tiny("llama_mha32_tied") + "/config.json", 1 << 20).value();
    for (const auto& [from, to] : replace) {
      const size_t at = config.find(from);
      TANDEM_CHECK(at != std::string::npos) << from;
      config.replace(at, std::strlen(from), to);
    }
    folder_.Write("config.json", config);
    const auto shards = SafetensorsFile::Open(Tiny("llama_mha32_tied") + "/model.safetensors");
    TANDEM_CHECK(shards.ok()) << shards.status().message();
    Shapes shapes = tensors;
    for (const auto& [name, entry] : (*shards)->header().tensors) shapes[name] = entry.shape;
    std::string header;
    int64_t bytes = 0;
    for (const auto& [name, shape] : shapes) {
      const std::string type = types.contains(name) ? types.at(name) : "F32";
      const int64_t begin = bytes;
      int64_t size = type == "F32" ? 4 : 2;
      for (int64_t dimension : shape) size *= dimension;
      bytes += size;
      absl::StrAppend(&header, header.empty() ? "{" : ",", "\"", name, "\":{\"dtype\":\"", type,
                      "\",\"shape\":[", absl::StrJoin(shape, ","), "],\"data_offsets\":[", begin,
                      ",", bytes, "]}");
    }
    folder_.Write("model.safetensors", SafetensorsText(header + "}", static_cast<size_t>(bytes)));
  }

  const std::string& path() const { return folder_.path(); }
  // As `--dtype auto` chooses it.
  DType ComputeDType() const {
    const auto plan = Model::Plan({.folder = path()}, *Reference());
    TANDEM_CHECK(plan.ok()) << plan.status().message();
    return plan->types.compute;
  }

 private:
  TempFolder folder_;
};

// Every matrix of the checkpoint in `type`.
ZeroCheckpoint::Types AllMatrices(const std::string& type) {
  const auto file = SafetensorsFile::Open(Tiny("llama_mha32_tied") + "/model.safetensors");
  TANDEM_CHECK(file.ok()) << file.status().message();
  ZeroCheckpoint::Types types;
  for (const auto& [name, entry] : (*file)->header().tensors) {
    if (entry.shape.size() == 2) types[name] = type;
  }
  return types;
}

TEST(ModelTest, ComputesInTheTypeOfTheWeightsUnlessToldOtherwise) {
  const auto backend = Reference();
  const auto dtype = [&](const char* folder, const char* asked) {
    return Model::Plan({.folder = Tiny(folder), .dtype = asked}, *backend)->types.compute;
  };
  EXPECT_EQ(dtype("llama_gqa64_bf16_sharded", "auto"), DType::kBF16);
  EXPECT_EQ(dtype("llama_gqa16_scaled_f16", "auto"), DType::kF32);
  EXPECT_EQ(dtype("gpt2_heads16", "auto"), DType::kF32);
  EXPECT_EQ(dtype("gpt2_heads16", "bf16"), DType::kBF16);
  EXPECT_EQ(dtype("llama_gqa64_bf16_sharded", "f32"), DType::kF32);
  EXPECT_THAT(Refusal({.folder = Tiny("gpt2_heads16"), .dtype = "int3"}),
              HasSubstr("--dtype is \"int3\", want auto, f32 or bf16"));
}

TEST(ModelTest, WhatConfigJsonSaysNeverNarrowsTheWeights) {
  const std::vector<std::pair<const char*, const char*>> says_bf16 = {{"float32", "bfloat16"}};
  EXPECT_EQ(ZeroCheckpoint({}, {}, says_bf16).ComputeDType(), DType::kF32);
  EXPECT_EQ(ZeroCheckpoint(AllMatrices("BF16")).ComputeDType(), DType::kBF16);
  // One wider matrix decides; a wider norm does not, norms are f32 in any case.
  ZeroCheckpoint::Types mixed = AllMatrices("BF16");
  mixed["model.layers.1.mlp.up_proj.weight"] = "F16";
  EXPECT_EQ(ZeroCheckpoint(mixed, {}, says_bf16).ComputeDType(), DType::kF32);
}

TEST(ModelTest, AnOutputProjectionOfItsOwnIsReadDespiteTiedEmbeddings) {
  const ZeroCheckpoint own({}, {{"lm_head.weight", {96, 64}}});
  const auto backend = Reference();
  const auto with = Model::Load({.folder = own.path()}, backend.get());
  const auto without = Model::Load({.folder = ZeroCheckpoint({}).path()}, backend.get());
  ASSERT_TRUE(with.ok() && without.ok()) << with.status() << without.status();
  EXPECT_EQ((*with)->spec().logits.parts[0].weight.name, "lm_head.weight");
  EXPECT_EQ((*without)->spec().logits.parts[0].weight.name, "model.embed_tokens.weight");
  // Dummy weights have every tensor, but no second one where the config ties them.
  const auto dummy =
      Model::Load({.folder = own.path(), .load_format = LoadFormat::kDummy}, backend.get());
  ASSERT_TRUE(dummy.ok());
  EXPECT_EQ((*dummy)->spec().logits.parts[0].weight.name, "model.embed_tokens.weight");
}

TEST(ModelTest, TensorsThatWouldChangeTheNumbersAreNotLeftOut) {
  const auto refusal = [](const std::string& name) {
    return Refusal({.folder = ZeroCheckpoint({}, {{name, {64}}}).path()});
  };
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.down_proj.bias",
        "model.layers.2.input_layernorm.weight", "model.layers.0.self_attn.q_norm.weight",
        "model.norm.bias"}) {
    EXPECT_THAT(refusal(name), HasSubstr("1 tensors of the checkpoint would change the numbers"));
    EXPECT_THAT(refusal(name), HasSubstr(name));
  }
}

TEST(ModelTest, OtherTensorsAreLeftOutWithOneWarning) {
  const auto warning = [](const ZeroCheckpoint::Shapes& tensors) {
    const ZeroCheckpoint checkpoint({}, tensors);
    testing::internal::CaptureStderr();
    EXPECT_EQ(Refusal({.folder = checkpoint.path()}), "accepted");
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warning({}), "");
  EXPECT_EQ(warning({{"model.layers.0.self_attn.rotary_emb.inv_freq", {16}}}), "");
  const std::string text = warning({{"score.weight", {2, 64}}, {"v_head.summary.bias", {1}}});
  EXPECT_THAT(text, HasSubstr("tensors of the checkpoint are not read"));
  EXPECT_THAT(text, HasSubstr("\"count\":2"));
  EXPECT_THAT(text, HasSubstr("score.weight"));
}

// The one file in `cache` that holds packed weights.
std::filesystem::path PackedFile(const TempFolder& cache) {
  for (const auto& entry : std::filesystem::directory_iterator(cache.path())) {
    if (entry.path().extension() == ".packed") return entry.path();
  }
  return {};
}

TEST(ModelTest, SecondLoadMapsTheCachedPacking) {
  const auto backend = Reference();
  const TempFolder cache;
  const ModelOptions options{.folder = Tiny("gpt2_heads16"), .cache_dir = cache.path()};
  const auto first = Model::Load(options, backend.get());
  ASSERT_TRUE(first.ok());
  // Were it packed again, the checkpoint's name in the cache would be another file.
  const std::filesystem::path kept = cache.path() + "/kept";
  std::filesystem::create_hard_link(PackedFile(cache), kept);
  const auto second = Model::Load(options, backend.get());
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(std::filesystem::equivalent(PackedFile(cache), kept));
  EXPECT_EQ((*first)->Digest(), (*second)->Digest());
}

TEST(ModelTest, PackedBytesAreKnownBeforeLoading) {
  const auto backend = Reference();
  const TempFolder cache;
  const ModelOptions options{.folder = Tiny("llama_gqa16_scaled_f16"), .cache_dir = cache.path()};
  const auto plan = Model::Plan(options, *backend);
  ASSERT_TRUE(plan.ok() && Model::Load(options, backend.get()).ok());
  const size_t file_bytes = std::filesystem::file_size(PackedFile(cache));
  EXPECT_GE(file_bytes, plan->weights.packed_bytes);
  EXPECT_LE(file_bytes,
            plan->weights.packed_bytes + 8'192);  // A header, and whose weights they are.
}

// Tables have the type that is computed in, matrices their own.
TEST(ModelTest, PackedBytesFollowBothTypes) {
  const auto backend = Reference();
  const auto config = ModelConfig::Load(Tiny("llama_mha32_tied"));
  ASSERT_TRUE(config.ok());
  const ModelSpec spec = MakeModelSpec(*config, *MakeDummyWeights(*config));
  const auto bytes = [&](DType compute, WeightType weights) {
    const auto packed = ModelWeights::Sizes(
        spec, *backend, {.compute = compute, .weights = weights}, TensorType::kF32);
    TANDEM_CHECK(packed.ok()) << packed.status().message();
    return packed->packed_bytes;
  };
  const size_t f32 = bytes(DType::kF32, WeightType::kF32);
  const size_t small_tables = f32 - bytes(DType::kBF16, WeightType::kF32);
  const size_t small_matrices = f32 - bytes(DType::kF32, WeightType::kBF16);
  EXPECT_EQ(small_tables, static_cast<size_t>(config->vocab_size * config->hidden_size) * 2);
  EXPECT_GT(small_matrices, 0u);
  EXPECT_EQ(f32 - bytes(DType::kBF16, WeightType::kBF16), small_tables + small_matrices);
  // A byte a number, and scales.
  const size_t int8_matrices = f32 - bytes(DType::kF32, WeightType::kInt8);
  EXPECT_GT(int8_matrices, small_matrices);
  EXPECT_LT(int8_matrices, small_matrices / 2 * 3);
}

TEST(ModelTest, MatricesAreKeptInWhatIsAskedFor) {
  const auto backend = Reference();
  for (const char* dtype : {"f32", "bf16"}) {
    ModelOptions options{.folder = Tiny("llama_mha32_tied"), .dtype = dtype};
    for (const char* weights : {"int8", "int4"}) {
      options.weights = weights;
      const auto model = Model::Load(options, backend.get());
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_EQ(NamesOf((*model)->types()),
                absl::StrCat("compute=", dtype, " weights=", weights, " kv=", dtype));
    }
    options.weights = "auto";
    EXPECT_EQ(NamesOf(Model::Plan(options, *backend)->types),
              absl::StrCat("compute=", dtype, " weights=", dtype, " kv=", dtype));
    options.weights = "int3";
    EXPECT_THAT(Refusal(options), HasSubstr("--weights is \"int3\", want auto, int8 or int4"));
  }
}

TEST(ModelTest, TheOutputProjectionAloneMayStayAsItIsComputedIn) {
  const auto backend = Reference();
  for (const char* name : {"llama_mha32_tied", "llama_gqa64_bf16_sharded"}) {
    ModelOptions options{.folder = Tiny(name), .dtype = "bf16", .output_weights = "dtype"};
    for (const WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
      options.weights = NameOf(type);
      const auto model = Model::Load(options, backend.get());
      ASSERT_TRUE(model.ok()) << model.status();
      const WeightParts& parts = (*model)->weights().parts();
      EXPECT_EQ(parts.logits.op->spec().weight_type, WeightType::kBF16);
      for (const LayerWeights& layer : parts.layers) {
        for (const LinearWeights* linear :
             {&layer.qkv, &layer.attention_output, &layer.ffn_in, &layer.ffn_out}) {
          EXPECT_EQ(linear->op->spec().weight_type, type);
        }
      }
      EXPECT_EQ(NamesOf((*model)->types()),
                absl::StrCat("compute=bf16 weights=", options.weights, " kv=bf16 output=bf16"));
    }
    options.weights = "auto";
    EXPECT_THAT(Refusal(options), HasSubstr("--output-weights is \"dtype\", which the output"));
    options.output_weights = "int8";
    EXPECT_THAT(Refusal(options), HasSubstr("--output-weights is \"int8\", want auto or dtype"));
  }
}

TEST(ModelTest, OutliersOfMatricesInEightBitsAreThoseFromTheThresholdOn) {
  const auto backend = Reference();
  const TempFolder cache;
  ModelOptions options{.folder = Tiny("llama_mha32_tied"),
                       .dtype = "bf16",
                       .weights = "int8",
                       .cache_dir = cache.path()};
  ASSERT_TRUE(Model::Load(options, backend.get()).ok());
  const auto num_images = [&] {
    return std::distance(std::filesystem::directory_iterator(cache.path()), {});
  };
  const auto images = num_images();
  options.int8_outliers = 6.5;
  for (const char* output : {"auto", "dtype"}) {
    options.output_weights = output;
    const auto model = Model::Load(options, backend.get());
    ASSERT_TRUE(model.ok()) << model.status();
    const WeightParts& parts = (*model)->weights().parts();
    const bool is_plain = options.output_weights == "dtype";
    EXPECT_EQ(parts.logits.op->spec().outlier_threshold, is_plain ? 0.0f : 6.5f);
    for (const LayerWeights& layer : parts.layers) {
      for (const LinearWeights* linear :
           {&layer.qkv, &layer.attention_output, &layer.ffn_in, &layer.ffn_out}) {
        EXPECT_EQ(linear->op->spec().outlier_threshold, 6.5f);
      }
    }
    EXPECT_EQ(NamesOf((*model)->types()),
              absl::StrCat("compute=bf16 weights=int8 kv=bf16", is_plain ? " output=bf16" : "",
                           " outliers=6.5"));
    if (!is_plain) {
      EXPECT_EQ(num_images(), images) << "packed again, to the same bytes";
    }
  }
  for (const double wrong : {-6.0, 1e-300, 1.1e6, 1e300, static_cast<double>(NAN)}) {
    options.int8_outliers = wrong;
    EXPECT_THAT(Refusal(options), HasSubstr("want 0, or 1.17549e-38 to 1e+06")) << wrong;
  }
  options.int8_outliers = 6;
  options.output_weights = "auto";
  for (const char* weights : {"auto", "int4"}) {
    options.weights = weights;
    EXPECT_THAT(
        Refusal(options),
        HasSubstr(absl::StrCat("--int8-outliers is 6, which only weights of \"int8\" have: want "
                               "these instead of \"",
                               weights, "\"")));
  }
}

TEST(ModelTest, APlainOutputProjectionIsAnotherPackedImage) {
  const auto backend = Reference();
  const TempFolder cache;
  ModelOptions options{
      .folder = Tiny("llama_mha32_tied"), .weights = "int8", .cache_dir = cache.path()};
  ASSERT_TRUE(Model::Load(options, backend.get()).ok());
  const size_t quantised = Model::Plan(options, *backend)->weights.packed_bytes;
  options.output_weights = "dtype";
  const auto model = Model::Load(options, backend.get());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->weights().parts().logits.op->spec().weight_type, WeightType::kF32);
  EXPECT_GT(Model::Plan(options, *backend)->weights.packed_bytes, quantised);
}

TEST(ModelTest, KvIsKeptInWhatIsAskedFor) {
  const auto backend = CreateBackend({.device = "cpu", .isa = "generic"});
  ASSERT_TRUE(backend.ok()) << backend.status();
  ModelOptions options{.folder = Tiny("llama_gqa64_bf16_sharded"), .dtype = "bf16"};
  size_t block_bytes = std::numeric_limits<size_t>::max();
  for (const char* kv : {"bf16", "int8g8", "int8", "fp8"}) {
    options.kv = kv;
    const auto plan = Model::Plan(options, **backend);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(NamesOf(plan->types), absl::StrCat("compute=bf16 weights=bf16 kv=", kv));
    const auto layout = KvLayout::Make(plan->config, **backend, plan->types, 16);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_LT(layout->block_bytes, block_bytes) << kv;
    block_bytes = layout->block_bytes;
  }
  options.kv = "f32";
  EXPECT_THAT(Model::Load(options, backend->get()).status().ToString(),
              HasSubstr("computes in bf16 with KV of type f32"));
  options.kv = "int4";
  EXPECT_THAT(Refusal(options),
              HasSubstr("--kv-dtype is \"int4\", want one of auto, f32, bf16, int8, int8g8, fp8"));
}

TEST(ModelTest, BytesOfABlockFollowTheSizes) {
  const auto backend = Reference();
  const auto config = ModelConfig::Load(Tiny("llama_gqa64_bf16_sharded"));
  ASSERT_TRUE(config.ok());
  const auto f32 = KvLayout::Make(*config, *backend, ModelTypes::Of(DType::kF32), 16);
  const auto bf16 = KvLayout::Make(*config, *backend, ModelTypes::Of(DType::kBF16), 32);
  ASSERT_TRUE(f32.ok() && bf16.ok());
  EXPECT_EQ(f32->block_bytes,
            size_t{2} * 2 * 2 * 16 * 64 * 4);  // Layers, K and V, heads, tokens, size, f32.
  EXPECT_EQ(bf16->block_bytes, f32->block_bytes);
  EXPECT_EQ(KvLayout::Make(*config, *backend, ModelTypes::Of(DType::kF32), 24).status().code(),
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
  const TempFolder cache;
  EXPECT_THAT(
      Refusal(
          {.folder = folder.path(), .load_format = LoadFormat::kDummy, .cache_dir = cache.path()}),
      HasSubstr("384"));
  EXPECT_TRUE(std::filesystem::is_empty(cache.path()));
}

TEST(ModelTest, ParametersAreCountedWithBiasesAndTiedOnesOnce) {
  const auto parameters = [](const char* name) {
    const auto config = ModelConfig::Load(Tiny(name));
    TANDEM_CHECK(config.ok()) << config.status().message();
    return MakeModelSpec(*config, *MakeDummyWeights(*config)).NumParameters();
  };
  EXPECT_EQ(parameters("llama_mha32_tied"), 63'808);
  EXPECT_EQ(parameters("qwen2_gqa16_window_of_last"), 31'136);
}

TEST(ModelTest, RefusesModelsTooLargeBeforeAllocatingAnything) {
  const TempFolder folder;
  folder.Write("config.json",
               R"({"architectures":["LlamaForCausalLM"],"hidden_size":65536,
                   "intermediate_size":1048576,"num_hidden_layers":1024,
                   "num_attention_heads":1024,"num_key_value_heads":1024,"head_dim":256,
                   "vocab_size":524288})");
  EXPECT_THAT(Refusal({.folder = folder.path(), .load_format = LoadFormat::kDummy}),
              HasSubstr("at most 4398046511104 bytes are loaded"));
}

TEST(ModelTest, DummyWeightsAreTheSameEveryTimeAndDifferByTensor) {
  const auto config = ModelConfig::Load(std::string(TANDEM_TEST_DATA) + "/tinyllama_1b_shape");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_layers, 22);
  const auto source = MakeDummyWeights(*config);
  EXPECT_EQ(MakeModelSpec(*config, *source).NumParameters(), 1'100'048'384);
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

// As a checkpoint's would: a layer neither blows numbers up nor lets them vanish.
TEST(ModelTest, DummyWeightsKeepTheSizeOfWhatTheyMultiply) {
  const auto numbers = [](const char* folder, const std::string& name,
                          const std::vector<int64_t>& shape) {
    const auto config = ModelConfig::Load(Tiny(folder));
    TANDEM_CHECK(config.ok()) << config.status().message();
    const auto source = MakeDummyWeights(*config);
    const auto view = source->Tensor(name, shape);
    std::vector<float> values(view->bytes.size() / sizeof(float));
    std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
    return values;
  };
  constexpr char kLlama[] = "llama_gqa16_scaled_biased", kGpt2[] = "gpt2_heads32_unprefixed",
                 kGemma[] = "gemma2_gqa16_window7";
  const auto expect_limit = [](const std::vector<float>& values, double limit) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    EXPECT_LE(std::max(-*low, *high), limit);
    EXPECT_GE(std::min(-*low, *high), 0.9 * limit);
  };
  // Each has 48 inputs and 1000 outputs; GPT-2 stores layers [in, out], but not its embedding.
  expect_limit(numbers(kLlama, "model.layers.0.mlp.up_proj.weight", {1000, 48}), 0.25);
  expect_limit(numbers(kGpt2, "h.0.mlp.c_fc.weight", {48, 1000}), 0.25);
  expect_limit(numbers(kGpt2, "wte.weight", {1000, 48}), 0.25);
  expect_limit(numbers(kLlama, "model.layers.0.mlp.up_proj.bias", {1000}), 0.02);
  EXPECT_EQ(numbers(kLlama, "model.norm.weight", {5}), std::vector<float>(5, 1.0f));
  EXPECT_EQ(numbers(kGemma, "model.norm.weight", {5}), std::vector<float>(5, 0.0f))
      << "it adds 1 to them";
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

// A layer takes 3 bytes a row for each of its outputs.
class ScratchyBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  absl::StatusOr<PackedFormat> GetPackedFormat(const LinearSpec& spec) const override {
    auto format = ForwardingBackend::GetPackedFormat(spec);
    if (format.ok()) format->row_scratch_bytes = 3 * static_cast<size_t>(spec.out_features);
    return format;
  }
};

TEST(ModelPlanTest, KnowsWhatTheLargestLayerTakesWhileItRuns) {
  const ScratchyBackend backend(*CreateBackend({.device = "reference"}));
  const auto plan = Model::Plan({.folder = Tiny("llama_mha32_tied")}, backend);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const ModelConfig& config = plan->config;
  const int64_t outputs = std::max(
      {config.vocab_size, 2 * config.ffn_size, config.query_size() + 2 * config.kv_size()});
  EXPECT_EQ(plan->weights.row_scratch_bytes, static_cast<size_t>(3 * outputs));
}

}  // namespace
}  // namespace tandem
