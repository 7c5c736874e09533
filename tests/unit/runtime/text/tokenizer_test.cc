#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/small_file.h"
#include "tests/unit/runtime/text/golden.h"

namespace tandem {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TokenizerGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  const std::unique_ptr<Tokenizer> tokenizer_ = LoadTokenizer(GetParam());
  const Golden golden_ = LoadGolden(GetParam());
};

TEST_P(TokenizerGoldenTest, EncodesAsThePythonPackage) {
  for (const GoldenText& golden : golden_.texts) {
    const auto ids = tokenizer_->Encode(golden.text, /*add_special_tokens=*/false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, golden.ids) << golden.text;
    const auto special = tokenizer_->Encode(golden.text, /*add_special_tokens=*/true);
    ASSERT_TRUE(special.ok()) << special.status();
    EXPECT_EQ(*special, golden.ids_with_special) << golden.text;
  }
}

TEST_P(TokenizerGoldenTest, DecodesAsThePythonPackage) {
  for (const GoldenDecoding& golden : golden_.decodings) {
    EXPECT_EQ(tokenizer_->Decode(golden.ids).value(), golden.decoded);
    EXPECT_EQ(tokenizer_->Decode(golden.ids, /*skip_special_tokens=*/false).value(),
              golden.decoded_with_special);
  }
}

TEST_P(TokenizerGoldenTest, VocabularyEndsBehindTheHighestId) {
  EXPECT_EQ(tokenizer_->vocab_size(), golden_.vocab_size);
  EXPECT_EQ(tokenizer_->TokenBytes(golden_.vocab_size), "");
  EXPECT_EQ(tokenizer_->TokenBytes(-1), "");
  EXPECT_FALSE(tokenizer_->IsSpecial(golden_.vocab_size));
  EXPECT_EQ(tokenizer_->Decode(std::vector<int32_t>{-1, golden_.vocab_size}).value(), "");
}

TEST_P(TokenizerGoldenTest, ThreadsMayShareIt) {
  std::vector<std::thread> threads;
  std::vector<int> differences(4);
  for (int& count : differences) {
    threads.emplace_back([&] {
      for (const GoldenText& golden : golden_.texts) {
        const auto ids = tokenizer_->Encode(golden.text, /*add_special_tokens=*/false);
        if (!ids.ok() || *ids != golden.ids) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(differences, ElementsAre(0, 0, 0, 0));
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGoldenTest, testing::ValuesIn(kTokenizerNames),
                         [](const auto& test) { return std::string(test.param); });

TEST(TokenizerTest, KnowsHowItsDecoderWorks) {
  EXPECT_EQ(LoadTokenizer("demo_model")->decoder_kind(), Tokenizer::DecoderKind::kBytes);
  EXPECT_EQ(LoadTokenizer("split_bytes")->decoder_kind(), Tokenizer::DecoderKind::kBytes);
  EXPECT_EQ(LoadTokenizer("word_piece")->decoder_kind(), Tokenizer::DecoderKind::kOther);
  const auto pieces = LoadTokenizer("sentence_piece");
  EXPECT_EQ(pieces->decoder_kind(), Tokenizer::DecoderKind::kSentencePiece);
  EXPECT_EQ(pieces->num_stripped_spaces(), 1);
}

TEST(TokenizerTest, TokensHaveNamesBytesAndKinds) {
  const auto demo = LoadTokenizer("demo_model");
  EXPECT_EQ(demo->TokenText(0), "<|begin|>");
  EXPECT_EQ(demo->TokenText(1), "<|end|>");
  EXPECT_TRUE(demo->IsSpecial(1));
  const int32_t space_the = IdOf(*demo, " the");
  ASSERT_GE(space_the, 0);
  EXPECT_FALSE(demo->IsSpecial(space_the));
  EXPECT_GE(IdOf(*demo, std::string_view("\0", 1)), 0);

  const auto pieces = LoadTokenizer("sentence_piece");
  EXPECT_TRUE(pieces->IsByteFallback(IdOf(*pieces, "\n")));
  const int32_t half = IdOf(*pieces, "\xE2");
  EXPECT_EQ(pieces->TokenText(half), "\xEF\xBF\xBD");
  EXPECT_FALSE(pieces->IsByteFallback(IdOf(*pieces, "<s>")));
}

TEST(TokenizerTest, AddedTokenOutsideTheByteAlphabetKeepsItsText) {
  const auto tokenizer = LoadTokenizer("split_bytes");
  const int32_t two_words = IdOf(*tokenizer, "two words");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{two_words}).value(), "two words");
}

TEST(TokenizerTest, TextThatIsNotUtf8IsRefusedWithItsPlace) {
  const auto ids = LoadTokenizer("demo_model")->Encode("abc\xFF", /*add_special_tokens=*/false);
  EXPECT_TRUE(absl::IsInvalidArgument(ids.status()));
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("not UTF-8 at byte 3"));
}

TEST(TokenizerTest, MissingFileIsNotFoundByName) {
  const auto tokenizer = Tokenizer::Create("/nonexistent");
  EXPECT_TRUE(absl::IsNotFound(tokenizer.status()));
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("/nonexistent/tokenizer.json"));
}

TEST(TokenizerTest, OversizedFileIsRefusedBeforeItIsRead) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "oversized_tokenizer";
  std::filesystem::create_directories(folder);
  { std::ofstream file(folder / "tokenizer.json"); }
  std::filesystem::resize_file(folder / "tokenizer.json", Tokenizer::kMaxFileBytes + 1);  // Sparse.
  const auto tokenizer = Tokenizer::Create(folder.string());
  EXPECT_TRUE(absl::IsInvalidArgument(tokenizer.status()));
  EXPECT_THAT(std::string(tokenizer.status().message()),
              AllOf(HasSubstr("134217729 bytes"), HasSubstr("at most 134217728")));
  std::filesystem::remove_all(folder);
}

TEST(TokenizerTest, BrokenFilesAreInvalidArguments) {
  const std::string deep(100'000, '[');
  for (
      const std::string& json :
      {std::string(), std::string("{"), std::string("[]"), std::string("null"),
       std::string(R"({"version": "1.0"})"),
       std::string(R"({"version": "1.0", "model": {"type": "Nonsense"}})"),
       std::string(R"({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}})"),
       std::string(
           R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})"),
       std::string(
           R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}})"),
       std::string("\xFF\xFE"), deep}) {
    const auto tokenizer = Tokenizer::Parse(json, {}, "file");
    EXPECT_TRUE(absl::IsInvalidArgument(tokenizer.status()))
        << json.substr(0, 100) << ": " << tokenizer.status();
    EXPECT_THAT(std::string(tokenizer.status().message()), testing::StartsWith("file: "));
  }
}

TEST(TokenizerTest, HugeIdIsRefusedBeforeTablesAreMade) {
  const auto tokenizer = Tokenizer::Parse(
      R"({"version": "1.0", "added_tokens": [], "model":
          {"type": "BPE", "vocab": {"a": 0, "b": 4294967295}, "merges": []}})",
      {}, "file");
  EXPECT_TRUE(absl::IsInvalidArgument(tokenizer.status()));
  EXPECT_THAT(std::string(tokenizer.status().message()),
              AllOf(HasSubstr("4294967295"), HasSubstr("at most 16777215")));
}

TEST(TokenizerTest, HolesInTheVocabularyDecodeToNothing) {
  const auto tokenizer = Tokenizer::Parse(
      R"({"version": "1.0", "added_tokens": [], "decoder": {"type": "ByteLevel",
          "add_prefix_space": true, "trim_offsets": true, "use_regex": true}, "model":
          {"type": "BPE", "vocab": {"a": 0, "b": 5}, "merges": []}})",
      {}, "file");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 6);
  EXPECT_EQ((*tokenizer)->Decode(std::vector<int32_t>{0, 3, 5}).value(), "ab");
}

TEST(TokenizerTest, ConfigurationChangesWhatTransformersLetsItChange) {
  const boost::json::value golden = LoadJson("configured_golden.json");
  ASSERT_GE(golden.at("cases").as_array().size(), 7u);
  for (const boost::json::value& c : golden.at("cases").as_array()) {
    SCOPED_TRACE(c.at("name").as_string().c_str());
    const std::string path =
        TokenizerFolder(c.at("tokenizer").as_string().c_str()) + "/tokenizer.json";
    const auto tokenizer =
        Tokenizer::Parse(ReadSmallFile(path, Tokenizer::kMaxFileBytes).value(),
                         {.config = boost::json::serialize(c.at("config")),
                          .special_tokens_map = boost::json::serialize(c.at("special_tokens_map"))},
                         path);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (const boost::json::value& text : c.at("texts").as_array()) {
      const auto ids = (*tokenizer)->Encode(text.at("text").as_string().c_str(), true);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, boost::json::value_to<std::vector<int32_t>>(text.at("ids")));
      EXPECT_EQ((*tokenizer)->Decode(*ids).value(), text.at("decoded").as_string().c_str());
    }
  }
}

TEST(TokenizerTest, AnAddedTokenWithoutAPlaceIsLeftOutWithAWarning) {
  const std::string json =
      R"({"version": "1.0", "added_tokens": [], "model":
          {"type": "BPE", "vocab": {"a": 0}, "merges": []}})";
  testing::internal::CaptureStderr();
  const auto tokenizer = Tokenizer::Parse(
      json,
      {.config = R"({"added_tokens_decoder": {"7": {"content": "<x>"}, "1": {"content": "<y>"}},
                     "pad_token": "<pad>"})",
       .special_tokens_map = ""},
      "file");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("has a token 7 that"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 2);
  EXPECT_EQ((*tokenizer)->TokenText(1), "<y>");
}

TEST(TokenizerTest, BrokenConfigurationsAreInvalidArguments) {
  const std::string json =
      ReadSmallFile(TokenizerFolder("sentence_piece") + "/tokenizer.json", 1 << 20).value();
  for (const char* broken : {"{", "[]"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::Parse(json, {broken, ""}, "f").status()));
    EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::Parse(json, {"", broken}, "f").status()));
  }
}

}  // namespace
}  // namespace tandem
