#include "runtime/config/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kVocabSize = 1'000;

GenerationConfig Parsed(std::string_view config, std::string_view generation) {
  const auto parsed = GenerationConfig::Parse(config, generation, kVocabSize);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(GenerationConfig());
}

TEST(GenerationConfigTest, ReadsTokensAndDefaults) {
  const GenerationConfig config = Parsed(
      R"({"eos_token_id":5})",
      R"({"eos_token_id":[9,2,9],"bos_token_id":1.0,"temperature":0.6,"top_p":0.9,"top_k":50})");
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 9));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_p, 0.9);
  EXPECT_EQ(config.top_k, 50);
  EXPECT_THAT(config.ignored, IsEmpty());
}

TEST(GenerationConfigTest, WithoutTheFileConfigJsonNamesTheTokens) {
  const GenerationConfig config = Parsed(R"({"eos_token_id":5,"bos_token_id":4})", "");
  EXPECT_THAT(config.eos_token_ids, ElementsAre(5));
  EXPECT_EQ(config.bos_token_id, 4);
  EXPECT_EQ(config.temperature, 1.0);
  EXPECT_EQ(config.top_p, 1.0);
  EXPECT_EQ(config.top_k, 0);
  EXPECT_THAT(Parsed("{}", "").eos_token_ids, IsEmpty());
}

TEST(GenerationConfigTest, WhatNamesNoTokenLeavesThemToConfigJson) {
  for (const char* generation :
       {"{}", R"({"eos_token_id":null})", R"({"eos_token_id":[]})", R"({"eos_token_id":1000})"}) {
    EXPECT_THAT(Parsed(R"({"eos_token_id":5})", generation).eos_token_ids, ElementsAre(5))
        << generation;
  }
}

TEST(GenerationConfigTest, ConfigJsonNamesTheBeginTokenOnlyWhereNothingElseDoes) {
  EXPECT_EQ(Parsed(R"({"bos_token_id":4})", R"({"bos_token_id":3})").bos_token_id, 3);
  EXPECT_EQ(Parsed(R"({"bos_token_id":4})", R"({"bos_token_id":1000})").bos_token_id, 4);
}

// Requests take it over as it is, and none may ask for fewer than 0.
TEST(GenerationConfigTest, ATopKOfMinusOneIsAll) {
  const GenerationConfig config = Parsed("{}", R"({"top_k":-1})");
  EXPECT_EQ(config.top_k, 0);
  EXPECT_THAT(config.ignored, IsEmpty());
}

TEST(GenerationConfigTest, TokensOutsideTheVocabularyAreIgnored) {
  // As GPT2Config(vocab_size=1000) saves itself.
  const GenerationConfig config =
      Parsed(R"({"bos_token_id":50256,"eos_token_id":50256})", R"({"eos_token_id":[-1,2,1000]})");
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config.bos_token_id, -1);
  EXPECT_THAT(
      config.ignored,
      ElementsAre("generation_config.json: eos_token_id -1 is outside the vocabulary of 1000",
                  "generation_config.json: eos_token_id 1000 is outside the vocabulary of 1000",
                  "config.json: bos_token_id 50256 is outside the vocabulary of 1000"));
}

TEST(GenerationConfigTest, DefaultsOutOfRangeAreIgnored) {
  const GenerationConfig config =
      Parsed("{}", R"({"temperature":3,"top_p":0,"top_k":"many","max_length":20})");
  EXPECT_EQ(config.temperature, 1.0);
  EXPECT_EQ(config.top_p, 1.0);
  EXPECT_EQ(config.top_k, 0);
  EXPECT_THAT(config.ignored,
              ElementsAre(HasSubstr("generation_config.json: temperature is 3, want a number"),
                          HasSubstr("top_p is 0"), HasSubstr("top_k is \"many\"")));
}

TEST(GenerationConfigTest, DefaultsThatNobodyAppliesAreListedUnlessTheyChangeNothing) {
  const GenerationConfig config = Parsed(
      "{}",
      R"({"repetition_penalty":1.1,"min_p":0.05,"no_repeat_ngram_size":3,"forced_bos_token_id":0,
          "suppress_tokens":[7]})");
  EXPECT_THAT(config.ignored,
              ElementsAre(HasSubstr("forced_bos_token_id is 0, which is not supported"),
                          HasSubstr("min_p is"), HasSubstr("no_repeat_ngram_size is 3"),
                          HasSubstr("repetition_penalty is"), HasSubstr("suppress_tokens is")));
  EXPECT_THAT(Parsed("{}", R"({"repetition_penalty":1.0,"min_p":0,"no_repeat_ngram_size":0,
                               "num_beams":1,"suppress_tokens":[],"guidance_scale":null})")
                  .ignored,
              IsEmpty());
}

TEST(GenerationConfigTest, BrokenFilesAreNamed) {
  std::string many = "1";
  for (int64_t i = 0; i < kMaxEosTokens; ++i) many += ",1";
  EXPECT_FALSE(GenerationConfig::Parse("{\"eos_token_id\":[" + many + "]}", "", kVocabSize).ok());
  const std::pair<const char*, const char*> cases[] = {
      {"{", ""},
      {"[]", ""},
      {R"({"eos_token_id":"a"})", ""},
      {"{}", "{"},
      {"{}", R"({"eos_token_id":[1.5]})"},
      {"{}", R"({"bos_token_id":{}})"},
  };
  for (const auto& [config, generation] : cases) {
    const absl::Status status = GenerationConfig::Parse(config, generation, kVocabSize).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << config << generation;
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.json"));
  }
}

}  // namespace
}  // namespace tandem
