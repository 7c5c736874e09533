#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/random.h"
#include "runtime/base/small_file.h"
#include "tests/support/temp_folder.h"
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

// ---- Texts in pieces ----

std::unique_ptr<Tokenizer> WithPieces(const std::string& name, size_t piece_bytes) {
  const std::string path = TokenizerFolder(name) + "/tokenizer.json";
  return Tokenizer::Parse(ReadSmallFile(path, Tokenizer::kMaxFileBytes).value(), {}, name,
                          piece_bytes)
      .value();
}

// What expressions split at, what tokens may begin or end with, and what looks like either.
std::string RandomText(uint64_t seed) {
  static const char* const kParts[] = {"a",
                                       "It",
                                       "the",
                                       "ll",
                                       "zebra",
                                       "7",
                                       "2024",
                                       " ",
                                       " ",
                                       " ",
                                       "  ",
                                       "\n",
                                       "\r\n",
                                       "\t",
                                       ",",
                                       ".",
                                       "...",
                                       "'",
                                       "'s",
                                       "'RE",
                                       "'ll",
                                       "!",
                                       "(",
                                       "-",
                                       "_",
                                       "\xC2\xA0",
                                       "\xE3\x80\x80",
                                       "\xE3\x80\x82",
                                       "\xEF\xBC\x8C",
                                       "\xE4\xB8\x96\xE7\x95\x8C",
                                       "\xEA\xB0\x80",
                                       "\xC3\xA9",
                                       "e\xCC\x81",
                                       "\xD0\xB6",
                                       "\xE0\xA4\x95",
                                       "\xE0\xA5\x8D",
                                       "\xF0\x9F\x98\x80",
                                       "\xE2\x96\x81",
                                       "\xC5\xBF",
                                       "\x01",
                                       "<|end|>",
                                       "<|",
                                       "|>",
                                       "<s>",
                                       "</s>",
                                       "two words",
                                       "two",
                                       "words",
                                       "[SEP]",
                                       "https://example.org/ab=cd=20#e"};
  std::string text;
  const uint64_t parts = 1 + Mix64(seed) % 40;
  for (uint64_t i = 1; i <= parts; ++i) {
    text += kParts[Mix64(seed * 1000 + i) % std::size(kParts)];
  }
  return text;
}

TEST_P(TokenizerGoldenTest, PiecesHaveTheTokensOfTheWhole) {
  const auto cut = WithPieces(GetParam(), 0), whole = WithPieces(GetParam(), SIZE_MAX);
  std::vector<std::string> texts;
  for (const GoldenText& golden : golden_.texts) texts.push_back(golden.text);
  for (uint64_t seed = 0; seed < 2'000; ++seed) texts.push_back(RandomText(seed));
  int num_cut = 0;
  for (const std::string& text : texts) {
    num_cut += cut->LargestPieceBytes(text).value() < text.size();
    for (const bool special : {false, true}) {
      ASSERT_EQ(cut->Encode(text, special).value(), whole->Encode(text, special).value()) << text;
    }
  }
  if (std::string(GetParam()) == "word_piece") {
    EXPECT_EQ(num_cut, 0);  // We do not know how it splits.
  } else {
    EXPECT_GT(num_cut, 200);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGoldenTest, testing::ValuesIn(kTokenizerNames),
                         [](const auto& test) { return std::string(test.param); });

constexpr char kProse[] = "The lazy dog slept, and then it woke up. ";

std::string Repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(TextInPiecesTest, PiecesOfALongTextAreShort) {
  const std::string text = Repeated(kProse, 10'000);
  for (const char* name : {"demo_model", "sentence_piece", "split_bytes"}) {
    const size_t bytes = LoadTokenizer(name)->LargestPieceBytes(text).value();
    EXPECT_GT(bytes, Tokenizer::kPieceBytes) << name;
    EXPECT_LT(bytes, Tokenizer::kPieceBytes + std::size(kProse)) << name;
  }
  const auto demo = LoadTokenizer("demo_model");
  const std::string word(100'000, 'a');
  EXPECT_EQ(demo->LargestPieceBytes(word).value(), word.size());
  EXPECT_EQ(demo->LargestPieceBytes(text + word + text).value() / word.size(), 1u);
}

TEST(TextInPiecesTest, WhatMayDependOnMoreThanThePieceIsNotCut) {
  const struct {
    const char* tokenizer;
    const char* why;
    const char* from;
    const char* to;
  } cases[] = {
      {"demo_model", "other regular expressions", R"("use_regex":true)", R"("use_regex":false)"},
      {"demo_model", "a space before each piece", R"("add_prefix_space":false)",
       R"("add_prefix_space":true)"},
      {"demo_model", "a normalizer", R"("normalizer":null)", R"("normalizer":{"type":"NFC"})"},
      {"demo_model", "an added token with the spaces beside it", R"("lstrip":false)",
       R"("lstrip":true)"},
      {"demo_model", "an added token with the spaces behind it", R"("rstrip":false)",
       R"("rstrip":true)"},
      {"demo_model", "chance", R"("dropout":null)", R"("dropout":0.5)"},
      {"demo_model", "the end of a word", R"("end_of_word_suffix":null)",
       R"("end_of_word_suffix":"</w>")"},
      {"split_bytes", "another regular expression", R"(\\p{N}{1,3})", R"(\\p{N}+)"},
      {"sentence_piece", "a token over two words", R"("vocab":{)",
       "\"vocab\":{\"a\xE2\x96\x81z\":700,"},
      {"sentence_piece", "characters without a token", R"("byte_fallback":true)",
       R"("byte_fallback":false)"},
      {"sentence_piece", "a byte without a token", R"("<0x41>")", R"("<0xZZ>")"},
      {"sentence_piece", "words that are tokens as they are", R"("ignore_merges":false)",
       R"("ignore_merges":true)"},
      {"sentence_piece", "an added token in normalized text", R"("normalized":false)",
       R"("normalized":true)"},
  };
  const std::string text = Repeated(kProse, 10);
  for (const auto& [name, why, from, to] : cases) {
    std::string json =
        ReadSmallFile(TokenizerFolder(name) + "/tokenizer.json", Tokenizer::kMaxFileBytes).value();
    // Files differ in their spaces.
    json = boost::json::serialize(boost::json::parse(json));
    const auto before = Tokenizer::Parse(json, {}, name, 0);
    ASSERT_TRUE(before.ok()) << before.status();
    EXPECT_LT((*before)->LargestPieceBytes(text).value(), text.size()) << name;
    const size_t at = json.find(from);
    ASSERT_NE(at, json.npos) << why;
    json.replace(at, std::string(from).size(), to);
    const auto after = Tokenizer::Parse(json, {}, name, 0);
    ASSERT_TRUE(after.ok()) << why << ": " << after.status();
    EXPECT_EQ((*after)->LargestPieceBytes(text).value(), text.size()) << name << ": " << why;
  }
}

TEST(TextInPiecesTest, AddedTokensAreFoundAsInTheWhole) {
  for (const char* name : {"demo_model", "sentence_piece"}) {
    const std::string json =
        ReadSmallFile(TokenizerFolder(name) + "/tokenizer.json", Tokenizer::kMaxFileBytes).value();
    for (const char* content : {"g s", " sleeps", "sleeps", "dog", ", a", "g s, "}) {
      boost::json::value parsed = boost::json::parse(json);
      const size_t id = parsed.at("model").at("vocab").as_object().size();
      for (const bool single_word : {false, true}) {
        parsed.at("added_tokens")
            .as_array()
            .push_back({{"id", id},
                        {"content", content},
                        {"single_word", single_word},
                        {"lstrip", false},
                        {"rstrip", false},
                        {"normalized", false},
                        {"special", false}});
        const std::string changed = boost::json::serialize(parsed);
        parsed.at("added_tokens").as_array().pop_back();
        const auto cut = Tokenizer::Parse(changed, {}, content, 0);
        const auto whole = Tokenizer::Parse(changed, {}, content, SIZE_MAX);
        ASSERT_TRUE(cut.ok() && whole.ok()) << cut.status();
        for (const char* text : {"a lazy dog sleeps, and", "dog sleeps", "a dogma", "big sleeps"}) {
          EXPECT_EQ((*cut)->Encode(text, false).value(), (*whole)->Encode(text, false).value())
              << content << " in " << text;
        }
      }
    }
  }
}

TEST(TextInPiecesTest, EndsOnceThereAreTooManyTokens) {
  const auto tokenizer = LoadTokenizer("demo_model");
  const std::string text = Repeated(kProse, 1'000);
  const size_t num_tokens = tokenizer->Encode(text, false).value().size();
  EXPECT_EQ(tokenizer->Encode(text, false, num_tokens).value().size(), num_tokens);
  const auto status = tokenizer->Encode(text, false, 100).status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr(absl::StrCat("of its ", text.size(), " bytes have")));
}

TEST(TextInPiecesTest, RefusesByLengthOnlyWhatCannotFit) {
  for (const char* name : {"demo_model", "sentence_piece", "split_bytes"}) {
    const auto tokenizer = LoadTokenizer(name);
    // As many bytes for each token as there can be.
    int longest = 0;
    for (int id = 0; id < tokenizer->vocab_size(); ++id) {
      const size_t bytes = tokenizer->TokenBytes(id).size();
      if (bytes > tokenizer->TokenBytes(longest).size()) longest = id;
    }
    const std::string text = Repeated(tokenizer->TokenBytes(longest), 1'000);
    const size_t num_tokens = tokenizer->Encode(text, false).value().size();
    EXPECT_TRUE(tokenizer->LargestPieceBytes(text, num_tokens).ok()) << name;
    const auto status = tokenizer->LargestPieceBytes(text, num_tokens / 4).status();
    EXPECT_TRUE(absl::IsOutOfRange(status)) << name << status;
  }
  // One token, however long.
  EXPECT_TRUE(LoadTokenizer("word_piece")->LargestPieceBytes(std::string(5'000, 'a'), 1).ok());
}

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

TEST(TokenizerTest, ATextThatIsTooLongIsRefused) {
  const std::string text(Tokenizer::kMaxTextBytes + 1, 'a');
  EXPECT_TRUE(absl::IsInvalidArgument(LoadTokenizer("demo_model")->Encode(text, false).status()));
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

// The library panics where a decoder strips more than there is.
TEST(TokenizerTest, AFileWithATokenThatCannotBeDecodedIsAnInvalidArgument) {
  const absl::Status status = Tokenizer::Parse(R"({"version": "1.0", "added_tokens": [], "decoder":
                          {"type": "Strip", "content": " ", "start": 1, "stop": 1},
                          "model": {"type": "BPE", "vocab": {" ": 0}, "merges": []}})",
                                               {}, "file")
                                  .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::StartsWith("file: not a tokenizer.json"));
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

TEST(TokenizerTest, BothFilesBesideItSayWhatIsSpecial) {
  const TempFolder folder;
  folder.CopyFrom(TokenizerFolder("split_bytes"));
  const auto special = [&] {
    const auto tokenizer = Tokenizer::Create(folder.path());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return std::pair((*tokenizer)->IsSpecial(602), (*tokenizer)->IsSpecial(603));
  };
  EXPECT_EQ(special(), std::pair(false, false));
  folder.Write("tokenizer_config.json", R"({"eos_token": "two words"})");
  EXPECT_EQ(special(), std::pair(true, false));
  folder.Write("special_tokens_map.json",
               "{\"additional_special_tokens\": [{\"content\": \"\xC3\xA9 tool\"}]}");
  EXPECT_EQ(special(), std::pair(true, true));
  folder.Write("special_tokens_map.json", "{");
  EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::Create(folder.path()).status()));
}

TEST(TokenizerTest, AnAddedTokenIsFoundAsTheConfigurationSays) {
  const std::string json =
      ReadSmallFile(TokenizerFolder("split_bytes") + "/tokenizer.json", 1 << 20).value();
  using Ids = std::vector<int32_t>;
  const auto encode = [&](const std::string& flag, const std::string& text) {
    const auto tokenizer =
        Tokenizer::Parse(json,
                         {.config = R"({"added_tokens_decoder": {"604": {"content": "new", ")" +
                                    flag + R"(": true}}})",
                          .special_tokens_map = ""},
                         "file");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return (*tokenizer)->Encode(text, false).value();
  };
  const auto around = [&](const std::string& before, const std::string& behind) {
    Ids ids = encode("special", before);
    ids.push_back(604);
    const Ids more = encode("special", behind);
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  EXPECT_EQ(encode("special", "a  new  b"), around("a  ", "  b"));
  EXPECT_EQ(encode("lstrip", "a  new  b"), around("a", "  b"));
  EXPECT_EQ(encode("rstrip", "a  new  b"), around("a  ", "b"));
  EXPECT_EQ(encode("special", "renewed"), around("re", "ed"));
  EXPECT_THAT(encode("single_word", "renewed"), testing::Not(testing::Contains(604)));
  EXPECT_EQ(encode("single_word", "a  new  b"), around("a  ", "  b"));
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
