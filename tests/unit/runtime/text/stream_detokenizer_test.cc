#include "runtime/text/stream_detokenizer.h"

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/utf8.h"
#include "tests/unit/runtime/text/golden.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 20240229;

std::vector<int32_t> Concatenate(std::span<const int32_t> a, std::span<const int32_t> b) {
  std::vector<int32_t> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

// Every part is checked to be whole characters.
std::string Stream(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                   std::span<const int32_t> ids, bool skip_special_tokens = true) {
  StreamDetokenizer detokenizer(&tokenizer, prompt, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.Append(id);
    EXPECT_TRUE(IsValidUtf8(part));
    text += part;
  }
  const std::string last = detokenizer.Finish();
  EXPECT_TRUE(IsValidUtf8(last));
  return text + last;
}

class DetokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  bool exact() const { return tokenizer_->decoder_kind() != Tokenizer::DecoderKind::kOther; }

  std::vector<int32_t> RandomIds(std::mt19937_64& random, int max_ids) const {
    std::vector<int32_t> ids(random() % (max_ids + 1));
    for (int32_t& id : ids) {
      // Half of them among the lowest ids: special tokens and lone bytes.
      const int range = random() % 2 == 0 ? 262 : tokenizer_->vocab_size();
      id = static_cast<int32_t>(random() % std::min(range, tokenizer_->vocab_size()));
    }
    return ids;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = LoadTokenizer(GetParam());
  const Golden golden_ = LoadGolden(GetParam());
};

TEST_P(DetokenizerTest, StreamEqualsWhatPythonDecodesAtOnce) {
  for (size_t i = 0; i < golden_.decodings.size(); ++i) {
    // A window cannot promise ids that no text encodes to.
    if (!exact() && i >= golden_.texts.size()) break;
    const GoldenDecoding& golden = golden_.decodings[i];
    EXPECT_EQ(Stream(*tokenizer_, {}, golden.ids), golden.decoded);
    EXPECT_EQ(Stream(*tokenizer_, {}, golden.ids, /*skip_special_tokens=*/false),
              golden.decoded_with_special);
  }
}

// Decoders that do not look at neighbours.
class ExactDetokenizerTest : public DetokenizerTest {};

TEST_P(ExactDetokenizerTest, StreamOfRandomIdsEqualsTheWhole) {
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<int32_t> ids = RandomIds(random, 40);
    const bool skip = round % 2 == 0;
    EXPECT_EQ(Stream(*tokenizer_, {}, ids, skip), tokenizer_->Decode(ids, skip).value());
  }
}

TEST_P(DetokenizerTest, BehindAPromptTheStreamIsWhatIdsAddToIt) {
  for (const GoldenText& golden : golden_.texts) {
    // A prompt that ends with a whole character.
    const std::vector<int32_t> prompt = tokenizer_->Encode("in the beginning", true).value();
    const std::string whole = tokenizer_->Decode(Concatenate(prompt, golden.ids)).value();
    EXPECT_EQ(tokenizer_->Decode(prompt).value() + Stream(*tokenizer_, prompt, golden.ids), whole);
  }
}

TEST_P(DetokenizerTest, ReplayedIdsRestoreTheState) {
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const std::vector<int32_t> prompt = RandomIds(random, 10);
    const std::vector<int32_t> ids = RandomIds(random, 30);
    const size_t cut = ids.empty() ? 0 : random() % ids.size();
    StreamDetokenizer first(tokenizer_.get(), prompt);
    for (size_t i = 0; i < cut; ++i) first.Append(ids[i]);
    StreamDetokenizer second(tokenizer_.get(), prompt);
    for (size_t i = 0; i < cut; ++i) second.Append(ids[i]);
    for (size_t i = cut; i < ids.size(); ++i)
      EXPECT_EQ(first.Append(ids[i]), second.Append(ids[i]));
    EXPECT_EQ(first.Finish(), second.Finish());
  }
}

TEST_P(DetokenizerTest, IdsOutsideTheVocabularyAddNothing) {
  StreamDetokenizer detokenizer(tokenizer_.get(), {});
  EXPECT_EQ(detokenizer.Append(-1), "");
  EXPECT_EQ(detokenizer.Append(tokenizer_->vocab_size()), "");
  EXPECT_EQ(detokenizer.Finish(), "");
}

INSTANTIATE_TEST_SUITE_P(All, DetokenizerTest, testing::ValuesIn(kTokenizerNames),
                         [](const auto& test) { return std::string(test.param); });

INSTANTIATE_TEST_SUITE_P(All, ExactDetokenizerTest,
                         testing::Values("demo_model", "sentence_piece", "split_bytes"),
                         [](const auto& test) { return std::string(test.param); });

TEST(DetokenizerStreamTest, CharacterComesWithItsLastByte) {
  const auto tokenizer = LoadTokenizer("demo_model");
  const std::vector<int32_t> ids = tokenizer->Encode("\xF0\x9F\x98\x80", false).value();
  ASSERT_GT(ids.size(), 1u);
  StreamDetokenizer detokenizer(tokenizer.get(), {});
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(detokenizer.Append(ids[i]), "");
  EXPECT_EQ(detokenizer.Append(ids.back()), "\xF0\x9F\x98\x80");
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST(DetokenizerStreamTest, UnfinishedCharacterIsReplacedAtTheEnd) {
  const auto tokenizer = LoadTokenizer("demo_model");
  const std::vector<int32_t> ids = tokenizer->Encode("\xF0\x9F\x98\x80", false).value();
  StreamDetokenizer detokenizer(tokenizer.get(), {});
  EXPECT_EQ(detokenizer.Append(ids.front()), "");
  EXPECT_EQ(detokenizer.Finish(), kReplacementCharacter);
}

TEST(DetokenizerStreamTest, OnlyTheFirstPieceOfATextLosesItsSpace) {
  const auto tokenizer = LoadTokenizer("sentence_piece");
  const std::vector<int32_t> word = tokenizer->Encode("the", false).value();
  EXPECT_EQ(Stream(*tokenizer, {}, word), "the");
  const std::vector<int32_t> begin = {IdOf(*tokenizer, "<s>")};
  EXPECT_EQ(Stream(*tokenizer, begin, word), "the");
  EXPECT_EQ(Stream(*tokenizer, begin, word, /*skip_special_tokens=*/false), " the");
  EXPECT_EQ(Stream(*tokenizer, word, word), " the");
}

TEST(DetokenizerStreamTest, HoleInTheVocabularyDoesNotEndAByteRun) {
  const auto tokenizer = Tokenizer::Parse(
      R"({"version": "1.0", "added_tokens": [], "decoder": {"type": "Sequence", "decoders": [
          {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"}]}, "model": {"type": "BPE",
          "vocab": {"<0xC3>": 0, "<0xA9>": 2}, "merges": []}})",
      {}, "file");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<int32_t> ids = {0, 1, 2};
  EXPECT_EQ(Stream(**tokenizer, {}, ids), "\xC3\xA9");
  EXPECT_EQ((*tokenizer)->Decode(ids).value(), "\xC3\xA9");
}

// Gemma's strips nothing, Llama's one space; what has other steps is left to the library.
TEST(DetokenizerStreamTest, WhateverTheDecodersStepsAreTheStreamIsTheWhole) {
  const auto replace = [](const std::string& from, const std::string& to) {
    return R"({"type": "Replace", "pattern": {"String": ")" + from + R"("}, "content": ")" + to +
           R"("}, {"type": "ByteFallback"}, {"type": "Fuse"})";
  };
  const auto strip = [](const std::string& what, int start, int stop) {
    return R"(, {"type": "Strip", "content": ")" + what + R"(", "start": )" +
           std::to_string(start) + R"(, "stop": )" + std::to_string(stop) + "}";
  };
  const std::string spaces = replace("\xE2\x96\x81", " ");
  for (const std::string& steps :
       {spaces, spaces + strip(" ", 1, 0), spaces + strip(" ", 2, 0), spaces + strip(" ", 1, 1),
        spaces + strip("x", 1, 0), replace("_", " "), replace("\xE2\x96\x81", "-")}) {
    const auto tokenizer = Tokenizer::Parse(
        R"({"version": "1.0", "added_tokens": [], "decoder": {"type": "Sequence", "decoders": [)" +
            steps +
            "]}, \"model\": {\"type\": \"BPE\", \"vocab\": "
            "{\"\xE2\x96\x81\xE2\x96\x81\x61\": 0, \"\xE2\x96\x81\x61\": 1, "
            "\"b\xE2\x96\x81\": 2, \"b\": 3}, \"merges\": []}}",
        {}, "file");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (const std::vector<int32_t>& ids :
         {std::vector<int32_t>{0, 1, 3}, {1, 3, 0}, {3, 1, 2}, {2, 1}}) {
      EXPECT_EQ(Stream(**tokenizer, {}, ids), (*tokenizer)->Decode(ids).value()) << steps;
    }
  }
}

TEST(DetokenizerStreamTest, ASpaceThatIsAByteIsLostAtTheEndToo) {
  const auto tokenizer = Tokenizer::Parse(
      R"({"version": "1.0", "added_tokens": [], "decoder": {"type": "Sequence", "decoders": [
          {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"},
          {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, "model": {"type": "BPE",
          "vocab": {"<0x20>": 0}, "merges": []}})",
      {}, "file");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<int32_t> ids = {0, 0};
  EXPECT_EQ((*tokenizer)->Decode(ids).value(), " ");
  EXPECT_EQ(Stream(**tokenizer, {}, ids), " ");
}

TEST(DetokenizerStreamTest, ACharacterIsWholeWhateverTheDecoder) {
  const auto tokenizer = Tokenizer::Parse(
      R"({"version": "1.0", "added_tokens": [], "decoder": {"type": "ByteFallback"},
          "model": {"type": "BPE", "vocab": {"<0xC3>": 0, "<0xA9>": 1}, "merges": []}})",
      {}, "file");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ASSERT_EQ((*tokenizer)->decoder_kind(), Tokenizer::DecoderKind::kOther);
  const std::vector<int32_t> ids = {0, 1, 0, 1};
  EXPECT_EQ(Stream(**tokenizer, {}, ids), "\xC3\xA9\xC3\xA9");
}

TEST(DetokenizerStreamTest, OfALongPromptTheEndIsWhatIdsFollow) {
  const auto tokenizer = LoadTokenizer("word_piece");
  std::vector<int32_t> prompt(10, IdOf(*tokenizer, "[CLS]"));
  const std::vector<int32_t> word = tokenizer->Encode("the", false).value();
  EXPECT_EQ(Stream(*tokenizer, prompt, word), "the");
  prompt.push_back(word[0]);
  EXPECT_EQ(Stream(*tokenizer, prompt, word), " the");
}

TEST(DetokenizerStreamTest, SpecialTokensAreLeftOutUnlessAskedFor) {
  const auto tokenizer = LoadTokenizer("demo_model");
  const std::vector<int32_t> ids = tokenizer->Encode("a<|end|>b", false).value();
  EXPECT_EQ(Stream(*tokenizer, {}, ids), "ab");
  EXPECT_EQ(Stream(*tokenizer, {}, ids, /*skip_special_tokens=*/false), "a<|end|>b");
}

}  // namespace
}  // namespace tandem
