#include "runtime/protocol/request_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "runtime/protocol/peer_messages.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr SpecLimits kLimits = {.vocab_size = 100};

// A prompt of four tokens, the last one generated; every field is set.
RequestSpec Good() {
  return {.token_ids = {7, 8, 99, 0},
          .prompt_tokens = 3,
          .choices = {2},
          .sampling = {.temperature = 0.5f,
                       .top_p = 0.9f,
                       .top_k = 4,
                       .seed = 5,
                       .min_tokens = 10,
                       .max_tokens = 10,
                       .num_logprobs = kMaxTopLogprobs,
                       .num_prompt_logprobs = 0,
                       .stop_token_ids = {1, 1'000'000},
                       .logit_bias = {{0, -100}, {99, 100}}},
          .time_left_us = 1};
}

TEST(RequestSpecTest, APromptForAPeerPromisesBlocksThatItMayHave) {
  const auto check = [](int32_t first_block, int32_t num_blocks) {
    return std::string(
        ValidateBlocks({.spec = {}, .first_block = first_block, .num_blocks = num_blocks})
            .message());
  };
  EXPECT_EQ(check(0, 1), "");
  EXPECT_EQ(check(kMaxRequestTokens, kMaxRequestTokens), "");
  EXPECT_EQ(check(0, 0), "num_blocks: 0, want 1 to 4194304");
  EXPECT_EQ(check(0, kMaxRequestTokens + 1), "num_blocks: 4194305, want 1 to 4194304");
  EXPECT_EQ(check(-1, 3), "first_block: -1, want 0 to 3");
  EXPECT_EQ(check(4, 3), "first_block: 4, want 0 to 3");
}

TEST(RequestSpecTest, APromptsSpecHasAllChoicesAndNothingGenerated) {
  RequestSpec spec = SpecOfPrompt({5, 6}, 3);
  EXPECT_THAT(spec.token_ids, ElementsAre(5, 6));
  EXPECT_EQ(spec.prompt_tokens, 2);
  EXPECT_THAT(spec.choices, ElementsAre(0, 1, 2));
  spec.sampling.max_tokens = 1;
  EXPECT_TRUE(Validate(spec, kLimits).ok());
}

TEST(RequestSpecTest, WhatIsAtItsLimitsIsValid) {
  EXPECT_EQ(Validate(Good(), kLimits), absl::OkStatus());
  RequestSpec spec = Good();
  spec.sampling.temperature = 0;
  spec.sampling.top_p = std::numeric_limits<float>::min();
  spec.sampling.top_k = INT32_MAX;
  spec.sampling.max_tokens = 2;
  spec.sampling.min_tokens = 0;
  spec.sampling.stop_token_ids.assign(kMaxStopTokenIds, 0);
  spec.sampling.logit_bias.clear();
  for (int32_t id = 0; id < static_cast<int32_t>(kMaxLogitBias); ++id) {
    spec.sampling.logit_bias.emplace_back(id, 0.5f);
  }
  spec.choices = {kMaxChoices - 1};
  EXPECT_EQ(Validate(spec, {.vocab_size = 300}), absl::OkStatus())
      << "one more token may be generated";
}

struct BadSpec {
  const char* field;
  void (*spoil)(RequestSpec*);
};

class BadSpecTest : public testing::TestWithParam<BadSpec> {};

TEST_P(BadSpecTest, IsRefusedByNameWithItsNumbers) {
  RequestSpec spec = Good();
  GetParam().spoil(&spec);
  const absl::Status status = Validate(spec, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().field));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

INSTANTIATE_TEST_SUITE_P(
    Fields, BadSpecTest,
    testing::Values(
        BadSpec{"time_left_us: -1", [](RequestSpec* s) { s->time_left_us = -1; }},
        BadSpec{"token_ids: number", [](RequestSpec* s) { s->token_ids.clear(); }},
        BadSpec{"token_ids: number: 4194305, want 1 to 4194304",
                [](RequestSpec* s) { s->token_ids.resize(kMaxRequestTokens + 1); }},
        BadSpec{"token_ids has token id -1 at 1, must be from 0 to 99",
                [](RequestSpec* s) { s->token_ids[1] = -1; }},
        BadSpec{"token_ids has token id 100 at 3", [](RequestSpec* s) { s->token_ids[3] = 100; }},
        BadSpec{"prompt_tokens: 0, want 1 to 4", [](RequestSpec* s) { s->prompt_tokens = 0; }},
        BadSpec{"prompt_tokens: 5", [](RequestSpec* s) { s->prompt_tokens = 5; }},
        BadSpec{"generated: 1, want 0 to 0",
                [](RequestSpec* s) { s->sampling.max_tokens = s->sampling.min_tokens = 1; }},
        BadSpec{"choices: number: 0", [](RequestSpec* s) { s->choices.clear(); }},
        BadSpec{"choices: number: 2, want 1 to 1",
                [](RequestSpec* s) {
                  s->choices = {0, 1};
                }},
        BadSpec{"choices: number: 129, want 1 to 128",
                [](RequestSpec* s) {
                  s->prompt_tokens = 4;
                  s->choices.resize(kMaxChoices + 1);
                }},
        BadSpec{"choices: -1", [](RequestSpec* s) { s->choices = {-1}; }},
        BadSpec{"choices: 128, want 0 to 127", [](RequestSpec* s) { s->choices = {kMaxChoices}; }},
        BadSpec{"choices: 1, want 2 to 127",
                [](RequestSpec* s) {
                  s->prompt_tokens = 4;
                  s->choices = {1, 1};
                }},
        BadSpec{"choices: 0, want 2 to 127",
                [](RequestSpec* s) {
                  s->prompt_tokens = 4;
                  s->choices = {1, 0};
                }},
        BadSpec{"temperature: -1", [](RequestSpec* s) { s->sampling.temperature = -1; }},
        BadSpec{"temperature: nan", [](RequestSpec* s) { s->sampling.temperature = kNan; }},
        BadSpec{"temperature: inf", [](RequestSpec* s) { s->sampling.temperature = kInfinity; }},
        BadSpec{"top_p: 0", [](RequestSpec* s) { s->sampling.top_p = 0; }},
        BadSpec{"top_p: 1.5", [](RequestSpec* s) { s->sampling.top_p = 1.5f; }},
        BadSpec{"top_p: 1.0000001",
                [](RequestSpec* s) { s->sampling.top_p = std::nextafter(1.0f, 2.0f); }},
        BadSpec{"top_p: nan", [](RequestSpec* s) { s->sampling.top_p = kNan; }},
        BadSpec{"top_k: -1", [](RequestSpec* s) { s->sampling.top_k = -1; }},
        BadSpec{"max_tokens: 0", [](RequestSpec* s) { s->sampling.max_tokens = 0; }},
        BadSpec{"max_tokens: 4194305",
                [](RequestSpec* s) { s->sampling.max_tokens = kMaxRequestTokens + 1; }},
        BadSpec{"min_tokens: 11, want 0 to 10",
                [](RequestSpec* s) { s->sampling.min_tokens = 11; }},
        BadSpec{"min_tokens: -1", [](RequestSpec* s) { s->sampling.min_tokens = -1; }},
        BadSpec{"num_logprobs: -2", [](RequestSpec* s) { s->sampling.num_logprobs = -2; }},
        BadSpec{"num_logprobs: 65",
                [](RequestSpec* s) { s->sampling.num_logprobs = kMaxTopLogprobs + 1; }},
        BadSpec{"num_prompt_logprobs: 65",
                [](RequestSpec* s) { s->sampling.num_prompt_logprobs = kMaxTopLogprobs + 1; }},
        BadSpec{"stop_token_ids: number: 1025",
                [](RequestSpec* s) { s->sampling.stop_token_ids.resize(kMaxStopTokenIds + 1); }},
        BadSpec{"stop_token_ids has token id -5 at 1",
                [](RequestSpec* s) { s->sampling.stop_token_ids[1] = -5; }},
        BadSpec{"logit_bias has 301 tokens, at most 300 are allowed",
                [](RequestSpec* s) { s->sampling.logit_bias.resize(kMaxLogitBias + 1); }},
        BadSpec{"logit_bias has token id 100, must be from 0 to 99",
                [](RequestSpec* s) { s->sampling.logit_bias[1].first = 100; }},
        BadSpec{"logit_bias has token id -1",
                [](RequestSpec* s) { s->sampling.logit_bias[0].first = -1; }},
        BadSpec{"logit_bias has token id 0 twice",
                [](RequestSpec* s) { s->sampling.logit_bias[1].first = 0; }},
        BadSpec{"logit_bias has token id 7 after 99",
                [](RequestSpec* s) {
                  s->sampling.logit_bias = {{99, 1}, {7, 1}};
                }},
        BadSpec{"logit_bias is -100.5 for token id 0, must be from -100 to 100",
                [](RequestSpec* s) { s->sampling.logit_bias[0].second = -100.5f; }},
        BadSpec{"logit_bias is 100.5 for token id 99",
                [](RequestSpec* s) { s->sampling.logit_bias[1].second = 100.5f; }},
        BadSpec{"logit_bias is 100.0001 for token id 99, must be from -100 to 100",
                [](RequestSpec* s) { s->sampling.logit_bias[1].second = 100.0001f; }},
        BadSpec{"logit_bias is nan",
                [](RequestSpec* s) { s->sampling.logit_bias[0].second = kNan; }},
        BadSpec{"logit_bias is inf",
                [](RequestSpec* s) { s->sampling.logit_bias[0].second = kInfinity; }}));

TEST(RequestSpecTest, IdsOfAnyWidthAreCheckedUnderTheNameTheyHave) {
  const std::vector<int64_t> wide = {0, 63, int64_t{1} << 32};
  const absl::Status status = CheckTokenIds<int64_t>("prompt", wide, 64);
  EXPECT_EQ(status.message(), "prompt has token id 4294967296 at 2, must be from 0 to 63");
  EXPECT_TRUE(CheckTokenIds<int64_t>("prompt", std::span(wide).first(2), 64).ok());
  EXPECT_TRUE(CheckTokenIds<int32_t>("prompt", {}, 64).ok());
}

}  // namespace
}  // namespace tandem
