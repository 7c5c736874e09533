#include "runtime/model/safetensors_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr char kGood[] = R"({"__metadata__":{"format":"pt"},)"
                         R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                         R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
                         R"("mask":{"dtype":"BOOL","shape":[8],"data_offsets":[32,40]}}   )";

absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenText(const TempFolder& folder,
                                                          std::string_view text) {
  return SafetensorsFile::Open(folder.Write("model.safetensors", text));
}

// What the file is refused with; "accepted" if it is not.
std::string Refusal(std::string_view text) {
  const TempFolder folder;
  const auto file = OpenText(folder, text);
  return file.ok() ? "accepted" : std::string(file.status().message());
}

TEST(SafetensorsFileTest, FindsTensorsWithTypeShapeAndBytes) {
  const TempFolder folder;
  const std::string text = SafetensorsText(kGood, 40);
  const auto file = OpenText(folder, text);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto a = (*file)->Tensor("a");
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(a->type, TensorType::kF32);
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 3}));
  const auto b = (*file)->Tensor("b");
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->type, TensorType::kBF16);
  ASSERT_EQ(b->bytes.size(), 8u);
  EXPECT_EQ(b->bytes[0], static_cast<uint8_t>(24 * 37));
  EXPECT_FALSE((*file)->Contains("__metadata__"));
}

TEST(SafetensorsFileTest, NamesWhatItCannotGive) {
  const TempFolder folder;
  const auto file = OpenText(folder, SafetensorsText(kGood, 40));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->Tensor("c").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string((*file)->Tensor("mask").status().message()),
      HasSubstr("tensor \"mask\" is BOOL; supported are F32, F16, BF16 and, of matrices, F8_E4M3"));
  EXPECT_EQ(SafetensorsFile::Open(folder.path() + "/absent").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open(folder.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsFileTest, RefusesTruncatedFiles) {
  const std::string text = SafetensorsText(kGood, 40);
  EXPECT_THAT(Refusal(""), HasSubstr("at least 8 bytes"));
  EXPECT_THAT(Refusal(text.substr(0, 7)), HasSubstr("at least 8 bytes"));
  EXPECT_THAT(Refusal(text.substr(0, 8)), HasSubstr("truncated"));
  EXPECT_THAT(Refusal(text.substr(0, 50)), HasSubstr("truncated"));
  EXPECT_THAT(Refusal(text.substr(0, text.size() - 1)), HasSubstr("[32, 40] in 39 bytes"));
}

TEST(SafetensorsFileTest, SaysThatAPointerOfGitLfsIsNone) {
  EXPECT_THAT(Refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 99\n"),
              HasSubstr("model.safetensors: not the file but a pointer of Git LFS"));
}

TEST(SafetensorsFileTest, RefusesHostileHeaderLengths) {
  std::string text = SafetensorsText(kGood, 40);
  text.replace(0, 8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
  EXPECT_THAT(Refusal(text), HasSubstr("header of 18446744073709551615 bytes, at most 100000000"));
  text.replace(0, 8, std::string("\x00\x00\x10\x00\x00\x00\x00\x00", 8));
  EXPECT_THAT(Refusal(text), HasSubstr("truncated"));
  text.replace(0, 8, std::string(8, '\0'));
  EXPECT_THAT(Refusal(text), HasSubstr("not JSON"));
}

// A header with one tensor "t" of these fields, over 16 bytes of data.
std::string WithTensor(const std::string& fields) {
  return Refusal(SafetensorsText("{\"t\":{" + fields + "}}", 16));
}

TEST(SafetensorsFileTest, RefusesTensorsThatDoNotFitTheirBytes) {
  EXPECT_EQ(WithTensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), "accepted");
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,16])"),
              HasSubstr("span 16 bytes, but shape and dtype take 12"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,17])"),
              HasSubstr("[0, 17] in 16 bytes of data: the file is shorter than its header says"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[4],"data_offsets":[16,0])"),
              HasSubstr("[16, 0]"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[4],"data_offsets":[-16,0])"),
              HasSubstr("want an integer from 0"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[-4],"data_offsets":[0,16])"),
              HasSubstr("want integers from 0"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[1e99],"data_offsets":[0,16])"),
              HasSubstr("want integers from 0"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16])"),
              HasSubstr("more than 64 bits"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])"),
              HasSubstr("more than 64 bits"));
  // Only the place of a type that is not known is checked.
  EXPECT_EQ(WithTensor(R"("dtype":"F4","shape":[5],"data_offsets":[0,16])"), "accepted");
  EXPECT_THAT(WithTensor(R"("dtype":"F4","shape":[5],"data_offsets":[0,12])"),
              HasSubstr("cover 12 of 16 bytes"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[4],"data_offsets":[0])"),
              HasSubstr("not a list of two"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","data_offsets":[0,16])"), HasSubstr("shape"));
  EXPECT_THAT(WithTensor(R"("dtype":7,"shape":[4],"data_offsets":[0,16])"),
              HasSubstr("want a string"));
  EXPECT_THAT(WithTensor(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16])"),
              HasSubstr("9 dimensions, at most 8"));
}

// Checkpoints have tensors that are not read, of every type: position ids are I64.
TEST(SafetensorsFileTest, KnowsTheSizeOfEveryType) {
  const std::pair<const char*, int> sizes[] = {
      {"F64", 8}, {"F32", 4},  {"F16", 2},     {"BF16", 2},    {"I64", 8},    {"U64", 8},
      {"I32", 4}, {"U32", 4},  {"I16", 2},     {"U16", 2},     {"I8", 1},     {"U8", 1},
      {"C64", 8}, {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [type, bytes] : sizes) {
    const auto with_shape = [&, type = type](int count) {
      return WithTensor(std::string("\"dtype\":\"") + type + "\",\"shape\":[" +
                        std::to_string(count) + "],\"data_offsets\":[0,16]");
    };
    EXPECT_EQ(with_shape(16 / bytes), "accepted") << type;
    EXPECT_THAT(with_shape(16 / bytes + 1), HasSubstr("span 16 bytes")) << type;
  }
}

TEST(SafetensorsFileTest, RefusesOverlapsHolesAndTrailingBytes) {
  const auto two = [](const std::string& first, const std::string& second, size_t data_bytes) {
    return Refusal(SafetensorsText(R"({"x":{"dtype":"U8","shape":[8],"data_offsets":)" + first +
                                       R"(},"y":{"dtype":"U8","shape":[8],"data_offsets":)" +
                                       second + "}}",
                                   data_bytes));
  };
  EXPECT_EQ(two("[0,8]", "[8,16]", 16), "accepted");
  EXPECT_EQ(two("[8,16]", "[0,8]", 16), "accepted");
  EXPECT_THAT(two("[0,8]", "[4,12]", 12), HasSubstr("inside"));
  EXPECT_THAT(two("[0,8]", "[0,8]", 8), HasSubstr("inside"));
  EXPECT_THAT(two("[0,8]", "[9,17]", 17), HasSubstr("hole"));
  EXPECT_THAT(two("[0,8]", "[8,16]", 17), HasSubstr("cover 16 of 17 bytes"));
}

TEST(SafetensorsFileTest, RefusesHeadersThatAreNotWhatTheySay) {
  EXPECT_THAT(Refusal(SafetensorsText("[]", 0)), HasSubstr("want an object"));
  EXPECT_THAT(Refusal(SafetensorsText("{\"a\":3}", 0)), HasSubstr("want an object"));
  EXPECT_THAT(Refusal(SafetensorsText("{} trailing", 0)), HasSubstr("not JSON"));
  EXPECT_THAT(Refusal(SafetensorsText(R"({"a":{"b":{"c":{"d":{"e":1}}}}})", 0)),
              HasSubstr("nested deeper than 4"));
  EXPECT_THAT(Refusal(SafetensorsText(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                      R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                                      4)),
              HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(Refusal(SafetensorsText("{\"a\": nu", 0)), HasSubstr("not JSON"));
}

}  // namespace
}  // namespace tandem
