// Checkpoints in 4 bits as GPTQ and AWQ write them, against what their formats say, which is
// written down here once more: as the packing, where the code has the unpacking.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/api/half.h"
#include "kernels/api/linear.h"
#include "runtime/base/random.h"
#include "runtime/model/int4_matrix.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/runtime/model/decoder_harness.h"
#include "tests/unit/runtime/model/stored_tensors.h"

namespace tandem {
namespace {

using testing::HasSubstr;

// A weight of input k and output n is (q[k][n] - zero[k / group][n]) · scale[k / group][n].
struct QuantisedMatrix {
  int64_t inputs, outputs, group;
  std::vector<uint32_t> q;
  std::vector<uint32_t> zeros;
  std::vector<Half> scales;

  int64_t groups() const { return (inputs + group - 1) / group; }
  float Weight(int64_t k, int64_t n) const {
    const int64_t g = k / group * outputs + n;
    const int difference = static_cast<int>(q[k * outputs + n]) - static_cast<int>(zeros[g]);
    return static_cast<float>(difference) * ToFloat(scales[g]);
  }
};

QuantisedMatrix RandomMatrix(int64_t inputs, int64_t outputs, int64_t group, Random* random) {
  QuantisedMatrix matrix{inputs, outputs, group, {}, {}, {}};
  for (int64_t i = 0; i < inputs * outputs; ++i) {
    matrix.q.push_back(static_cast<uint32_t>(random->Below(16)));
  }
  for (int64_t i = 0; i < matrix.groups() * outputs; ++i) {
    matrix.zeros.push_back(static_cast<uint32_t>(random->Between(1, 15)));
    matrix.scales.push_back(ToHalf(0.002f + 0.02f * static_cast<float>(random->Unit())));
  }
  return matrix;
}

// GPTQ: bits 4i to 4i + 3 of word [j][n] are those of input 8j + i; of zeros' word [g][j] the zero
// of output 8j + i, less one in the first format.
void AddGptq(const QuantisedMatrix& m, const std::string& name, uint32_t zero_less,
             StoredTensors* tensors) {
  std::vector<uint32_t> words(m.inputs / 8 * m.outputs), zeros(m.groups() * m.outputs / 8), index;
  for (int64_t k = 0; k < m.inputs; ++k) {
    for (int64_t n = 0; n < m.outputs; ++n) {
      words[k / 8 * m.outputs + n] |= m.q[k * m.outputs + n] << (4 * (k % 8));
    }
    index.push_back(static_cast<uint32_t>(k / m.group));
  }
  for (size_t i = 0; i < m.zeros.size(); ++i) {
    zeros[i / 8] |= (m.zeros[i] - zero_less) << (4 * (i % 8));
  }
  (*tensors)[name + ".qweight"] = Stored("I32", {m.inputs / 8, m.outputs}, words);
  (*tensors)[name + ".qzeros"] = Stored("I32", {m.groups(), m.outputs / 8}, zeros);
  (*tensors)[name + ".scales"] = Stored("F16", {m.groups(), m.outputs}, m.scales);
  (*tensors)[name + ".g_idx"] = Stored("I32", {m.inputs}, index);
}

// AWQ: the eight outputs of a word come in this order, zeros too.
void AddAwq(const QuantisedMatrix& m, const std::string& name, StoredTensors* tensors) {
  constexpr int kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto pack = [&](const std::vector<uint32_t>& numbers) {
    std::vector<uint32_t> words(numbers.size() / 8);
    for (size_t i = 0; i < words.size(); ++i) {
      for (int place = 0; place < 8; ++place) {
        words[i] |= numbers[8 * i + kOrder[place]] << (4 * place);
      }
    }
    return words;
  };
  (*tensors)[name + ".qweight"] = Stored("I32", {m.inputs, m.outputs / 8}, pack(m.q));
  (*tensors)[name + ".qzeros"] = Stored("I32", {m.groups(), m.outputs / 8}, pack(m.zeros));
  (*tensors)[name + ".scales"] = Stored("F16", {m.groups(), m.outputs}, m.scales);
}

void AddDequantised(const QuantisedMatrix& m, const std::string& name, StoredTensors* tensors) {
  std::vector<float> weights;
  for (int64_t n = 0; n < m.outputs; ++n) {
    for (int64_t k = 0; k < m.inputs; ++k) weights.push_back(m.Weight(k, n));
  }
  (*tensors)[name + ".weight"] = Stored("F32", {m.outputs, m.inputs}, weights);
}

// What a checkpoint is: the method, as config.json names it, and its first or second format.
struct Kind {
  const char* name;
  const char* config;  // Empty: dequantised.
  Int4Format::Method method;
  int zero_less;
};
constexpr Kind kKinds[] = {
    {"gptq", R"("quant_method":"gptq","desc_act":false,"sym":true)", Int4Format::Method::kGptq, 1},
    {"gptq_v2", R"("quant_method":"gptq","checkpoint_format":"gptq_v2")", Int4Format::Method::kGptq,
     0},
    {"awq", R"("quant_method":"awq","version":"gemm","zero_point":true)", Int4Format::Method::kAwq,
     0},
};
constexpr Kind kDequantised{"dequantised", "", Int4Format::Method::kNone, 0};

void Add(const Kind& kind, const QuantisedMatrix& m, const std::string& name,
         StoredTensors* tensors) {
  if (kind.method == Int4Format::Method::kNone) return AddDequantised(m, name, tensors);
  if (kind.method == Int4Format::Method::kAwq) return AddAwq(m, name, tensors);
  AddGptq(m, name, static_cast<uint32_t>(kind.zero_less), tensors);
}

TensorView ViewOf(const StoredTensor& tensor) {
  return {tensor.dtype == "I32" ? TensorType::kI32
                                : (tensor.dtype == "F16" ? TensorType::kF16 : TensorType::kF32),
          tensor.shape,
          {reinterpret_cast<const uint8_t*>(tensor.bytes.data()), tensor.bytes.size()}};
}

absl::StatusOr<Int4Matrix> Unpack(const Kind& kind, const QuantisedMatrix& m,
                                  const StoredTensors& tensors) {
  Int4Tensors given{ViewOf(tensors.at("m.qweight")), ViewOf(tensors.at("m.qzeros")),
                    ViewOf(tensors.at("m.scales")), std::nullopt};
  if (tensors.contains("m.g_idx")) given.group_index = ViewOf(tensors.at("m.g_idx"));
  return UnpackInt4({kind.method, m.group, kind.zero_less}, "m", m.inputs, m.outputs, given);
}

TEST(Int4MatrixTest, NumbersScalesAndZerosAreThoseThatWerePacked) {
  Random random(3);
  for (const Kind& kind : kKinds) {
    for (const int64_t group : kInt4Groups) {
      const QuantisedMatrix m = RandomMatrix(2 * group + 8, 200, group, &random);
      StoredTensors tensors;
      Add(kind, m, "m", &tensors);
      const auto unpacked = Unpack(kind, m, tensors);
      ASSERT_TRUE(unpacked.ok()) << unpacked.status();
      for (int64_t n = 0; n < m.outputs; ++n) {
        for (int64_t k = 0; k < m.inputs; ++k) {
          const int64_t g = n * m.groups() + k / group;
          const int difference = unpacked->numbers[n * m.inputs + k] - unpacked->zeros[g];
          ASSERT_EQ(static_cast<float>(difference) * unpacked->scales[g], m.Weight(k, n))
              << kind.name << ", group " << group << ", input " << k << ", output " << n;
          ASSERT_EQ(unpacked->numbers[n * m.inputs + k], m.q[k * m.outputs + n]);
        }
      }
    }
  }
}

// Stored as 15, which is what AutoGPTQ makes of it.
TEST(Int4MatrixTest, AZeroOfTheFirstFormatMayBeSixteen) {
  Random random(4);
  QuantisedMatrix m = RandomMatrix(32, 8, 32, &random);
  m.zeros[5] = 16;
  StoredTensors tensors;
  Add(kKinds[0], m, "m", &tensors);
  EXPECT_EQ(Unpack(kKinds[0], m, tensors)->zeros[5], 16);
}

std::string Refused(const QuantisedMatrix& m, const StoredTensors& tensors) {
  const auto unpacked = Unpack(kKinds[0], m, tensors);
  EXPECT_EQ(unpacked.status().code(), absl::StatusCode::kFailedPrecondition) << unpacked.status();
  return std::string(unpacked.status().message());
}

TEST(Int4MatrixTest, WhatWouldBeOtherNumbersIsRefused) {
  Random random(5);
  const QuantisedMatrix m = RandomMatrix(64, 16, 32, &random);
  StoredTensors good;
  Add(kKinds[0], m, "m", &good);
  StoredTensors tensors = good;
  tensors["m.g_idx"].bytes[4 * 31] = 1;
  EXPECT_THAT(Refused(m, tensors), HasSubstr("m.g_idx: input 31 is of group 1, want 0"));
  tensors["m.g_idx"].dtype = "F32";
  EXPECT_THAT(Refused(m, tensors), HasSubstr("m.g_idx: is of type F32, want I32"));
  for (const char* name : {"qweight", "qzeros"}) {
    tensors = good;
    tensors[absl::StrCat("m.", name)].dtype = "F32";
    EXPECT_THAT(Refused(m, tensors), HasSubstr(absl::StrCat("m.", name, ": is of type F32")));
  }
  tensors = good;
  tensors["m.scales"].dtype = "I32";
  EXPECT_THAT(Refused(m, tensors), HasSubstr("m.scales: is of type I32, want F16"));
  std::vector<float> scales;
  for (const Half scale : m.scales) scales.push_back(ToFloat(scale));
  tensors["m.scales"] = Stored("F32", {2, 16}, scales);
  EXPECT_TRUE(Unpack(kKinds[0], m, tensors).ok());
  scales[17] = 0.1f;
  tensors["m.scales"] = Stored("F32", {2, 16}, scales);
  EXPECT_THAT(Refused(m, tensors), HasSubstr("that of output 1 in group 1 is 0.1"));
  scales[17] = std::numeric_limits<float>::infinity();
  tensors["m.scales"] = Stored("F32", {2, 16}, scales);
  EXPECT_THAT(Refused(m, tensors), HasSubstr("that of output 1 in group 1 is inf"));
  for (const auto& [inputs, outputs] : {std::pair{60, 16}, std::pair{64, 12}}) {
    const QuantisedMatrix odd = RandomMatrix(inputs, outputs, 32, &random);
    EXPECT_THAT(Refused(odd, good), HasSubstr("which 8 must divide"));
  }
}

// The same matrices whatever they are kept as.
StoredTensors CheckpointOf(const Kind& kind, int64_t group) {
  Random random(static_cast<uint64_t>(group));
  StoredTensors tensors = UnquantisedTensors(&random);
  for (const StoredMatrix& matrix : kMatrices) {
    Add(kind, RandomMatrix(matrix.inputs, matrix.outputs, group, &random), NameOf(matrix),
        &tensors);
  }
  return tensors;
}

void WriteCheckpoint(const TempFolder& folder, const Kind& kind, int64_t group,
                     const StoredTensors& tensors) {
  std::string quantisation;
  if (*kind.config != '\0') {
    quantisation = absl::StrFormat(R"({"bits":4,"group_size":%d,%s})", group, kind.config);
  }
  WriteCheckpoint(folder, tensors, quantisation);
}

std::vector<float> LogitsOf(const Kind& kind, int64_t group, const StoredTensors& tensors,
                            const char* device = "cpu") {
  TempFolder folder;
  WriteCheckpoint(folder, kind, group, tensors);
  const auto harness = DecoderHarness::Create(folder.path(), "f32", {.device = device}, 16);
  EXPECT_TRUE(harness.ok()) << kind.name << ": " << harness.status();
  if (!harness.ok()) return {};
  const std::vector<int32_t> tokens = {1, 17, 5, 95, 40, 2, 3};
  return (*harness)->Feed(tokens);
}

TEST(Int4CheckpointTest, EveryFormatOfTheSameNumbersGivesTheSameBits) {
  for (const int64_t group : kInt4Groups) {
    const auto logits = LogitsOf(kKinds[0], group, CheckpointOf(kKinds[0], group));
    ASSERT_EQ(logits.size(), 7u * kVocabulary);
    for (const Kind& kind : kKinds) {
      EXPECT_EQ(LogitsOf(kind, group, CheckpointOf(kind, group)), logits) << kind.name;
    }
    // The same weights in f32, but for inputs of 8 bits.
    const auto exact = LogitsOf(kDequantised, group, CheckpointOf(kDequantised, group));
    double difference = 0, square = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      difference += std::pow(logits[i] - exact[i], 2);
      square += std::pow(exact[i], 2);
    }
    EXPECT_GT(difference, 0) << "inputs were not made 8 bits";
    EXPECT_LT(std::sqrt(difference / square), 0.04) << "group " << group;
  }
}

// AutoGPTQ leaves biases of zeros in models that have none. A g_idx is not needed.
TEST(Int4CheckpointTest, BiasesThatTheQuantiserAddedChangeNothing) {
  const Kind& gptq = kKinds[0];
  const StoredTensors plain = CheckpointOf(gptq, 64);
  StoredTensors biased;
  for (const auto& [name, tensor] : plain) {
    if (!name.ends_with(".g_idx")) biased[name] = tensor;
    if (!name.ends_with(".qweight")) continue;
    const std::string module = name.substr(0, name.rfind('.'));
    biased[module + ".bias"] =
        Stored("F32", {tensor.shape[1]}, std::vector<float>(tensor.shape[1]));
  }
  const auto logits = LogitsOf(gptq, 64, plain);
  EXPECT_EQ(LogitsOf(gptq, 64, biased), logits);
  StoredTensors& other = biased;
  float one = 1;
  std::memcpy(other["model.layers.0.self_attn.v_proj.bias"].bytes.data(), &one, 4);
  EXPECT_NE(LogitsOf(gptq, 64, biased), logits);
}

TEST(Int4CheckpointTest, MatricesThatAreNotInFourBitsStayAsTheyAre) {
  TempFolder folder;
  WriteCheckpoint(folder, kKinds[2], 64, CheckpointOf(kKinds[2], 64));
  const auto backend = CreateBackend({.device = "cpu"});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto model = Model::Load({.folder = folder.path()}, backend->get());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(NamesOf((*model)->types()), "compute=f32 weights=int4 kv=f32");
  const auto& parts = (*model)->weights().parts();
  EXPECT_EQ(parts.logits.op->spec().weight_type, WeightType::kF32);
  EXPECT_EQ(parts.layers[0].ffn_out.op->spec().weight_type, WeightType::kInt4);
  EXPECT_EQ(parts.layers[0].ffn_out.op->spec().group, 64);
}

TEST(Int4CheckpointTest, ABiasOfSomePartsOfALayerIsRefused) {
  for (const char* part : {"q_proj", "k_proj"}) {
    TempFolder folder;
    StoredTensors tensors = CheckpointOf(kKinds[0], 64);
    const std::string name = absl::StrCat("model.layers.0.self_attn.", part);
    const int64_t outputs = tensors.at(name + ".qweight").shape[1];
    tensors[name + ".bias"] = Stored("F32", {outputs}, std::vector<float>(outputs, 1));
    WriteCheckpoint(folder, kKinds[0], 64, tensors);
    EXPECT_THAT(LoadRefusal({.folder = folder.path()}), HasSubstr("one of them alone has a bias"))
        << part;
  }
}

// The same tensors, read with other zeros, are another model.
TEST(Int4CheckpointTest, WhatAddsToZerosIsInTheDigest) {
  std::set<std::string> digests;
  for (const Kind* kind : {&kKinds[0], &kKinds[1]}) {
    TempFolder folder;
    WriteCheckpoint(folder, *kind, 64, CheckpointOf(kKinds[0], 64));
    const auto backend = CreateBackend({.device = "cpu"});
    const auto model = Model::Load({.folder = folder.path()}, backend->get());
    ASSERT_TRUE(model.ok()) << model.status();
    digests.insert((*model)->Digest());
  }
  EXPECT_EQ(digests.size(), 2u);
}

TEST(Int4CheckpointTest, OtherFormatsAreRefusedByName) {
  TempFolder folder;
  StoredTensors tensors = CheckpointOf(kKinds[0], 32);
  WriteCheckpoint(folder, kKinds[0], 32, tensors);
  EXPECT_EQ(LoadRefusal({.folder = folder.path()}), "loaded");
  for (const char* weights : {"int8", "int4"}) {
    EXPECT_THAT(LoadRefusal({.folder = folder.path(), .weights = weights}),
                HasSubstr("the checkpoint's are in 4 bits already"));
  }
  EXPECT_THAT(LoadRefusal({.folder = folder.path(), .load_format = LoadFormat::kDummy}),
              HasSubstr("quantization_config is set, and dummy weights"));
  tensors["model.layers.0.mlp.down_proj.g_idx"].bytes[0] = 3;
  WriteCheckpoint(folder, kKinds[0], 32, tensors);
  EXPECT_THAT(LoadRefusal({.folder = folder.path()}),
              HasSubstr("model.layers.0.mlp.down_proj.g_idx: input 0 is of group 3, want 0"));
  // Another group than config.json says is another shape.
  WriteCheckpoint(folder, kKinds[0], 64, CheckpointOf(kKinds[0], 32));
  EXPECT_THAT(LoadRefusal({.folder = folder.path()}), HasSubstr("scales"));
  // A matrix of words is no matrix of numbers.
  tensors = CheckpointOf(kDequantised, 32);
  tensors["lm_head.weight"].dtype = "I32";
  WriteCheckpoint(folder, kDequantised, 32, tensors);
  EXPECT_THAT(LoadRefusal({.folder = folder.path()}),
              HasSubstr("\"lm_head.weight\" is of type I32"));
}

}  // namespace
}  // namespace tandem
