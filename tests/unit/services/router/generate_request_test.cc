#include "services/router/generate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "services/router/api_error.h"
#include "services/router/api_limits.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelInfo DemoModel() {
  ModelInfo model;
  model.served_name = "demo";
  model.vocab_size = 100;
  model.max_model_tokens = 64;
  model.generation.eos_token_ids = {1, 2};
  return model;
}

TEST(CheckRequestTest, ACacheSaltIsRequiredWhereCachesAreIsolated) {
  const auto check = [model = DemoModel()](const GenerateRequest& request, bool isolate_cache) {
    return CheckRequest(request, model, isolate_cache);
  };
  GenerateRequest request;
  request.prompts.emplace_back(std::vector<int64_t>{1, 2});
  EXPECT_TRUE(check(request, false).ok());
  const absl::Status refused = check(request, true);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("cache_salt is missing; this server was started with --isolate-cache"));
  request.cache_salt = "";
  EXPECT_TRUE(absl::IsInvalidArgument(check(request, true)));
  request.cache_salt = std::string(256, 's');
  EXPECT_TRUE(check(request, true).ok());
  EXPECT_TRUE(check(request, false).ok());
  request.cache_salt->push_back('s');
  EXPECT_THAT(std::string(check(request, false).message()),
              HasSubstr("cache_salt has 257 bytes, must be from 1 to 256"));
}

// What the limits still allow, and what is just beyond.
TEST(CheckRequestTest, LimitsAreAllowedAndNoMore) {
  struct Case {
    std::string field;  // Which the error names.
    std::function<void(GenerateRequest*, int64_t more)> change;
  };
  const Case cases[] = {
      {"temperature", [](auto* r, int64_t more) { r->temperature = 2.0 + 1e-9 * more; }},
      {"temperature", [](auto* r, int64_t more) { r->temperature = -1e-9 * more; }},
      {"top_p", [](auto* r, int64_t more) { r->top_p = 1.0 + 1e-9 * more; }},
      {"top_p", [](auto* r, int64_t more) { r->top_p = more > 0 ? 0.0 : 1e-300; }},
      {"top_k", [](auto* r, int64_t more) { r->top_k = -1 - more; }},
      {"top_k", [](auto* r, int64_t more) { r->top_k = INT32_MAX + more; }},
      {"n", [](auto* r, int64_t more) { r->n = 1 - more; }},
      {"n", [](auto* r, int64_t more) { r->n = kMaxN + more; }},
      {"logprobs", [](auto* r, int64_t more) { r->num_logprobs = 0 - more; }},
      {"logprobs", [](auto* r, int64_t more) { r->num_logprobs = kMaxLogprobs + more; }},
      {"prompt_logprobs", [](auto* r, int64_t more) { r->num_prompt_logprobs = 0 - more; }},
      {"prompt_logprobs",
       [](auto* r, int64_t more) { r->num_prompt_logprobs = kMaxLogprobs + more; }},
      {"stop", [](auto* r, int64_t more) { r->stop.assign(kMaxStopStrings + more, "s"); }},
      {"stop",
       [](auto* r, int64_t more) {
         r->stop = {"s", std::string(1 - more, 's')};
       }},
      {"stop",
       [](auto* r, int64_t more) {
         r->stop = {"s", std::string(kMaxStopStringBytes + more, 's')};
       }},
      {"stop_token_ids",
       [](auto* r, int64_t more) {
         r->stop_token_ids = {5, 99 + more};
       }},
      {"stop_token_ids",
       [](auto* r, int64_t more) {
         r->stop_token_ids = {5, 0 - more};
       }},
      {"logit_bias",
       [](auto* r, int64_t more) {
         r->logit_bias = {{static_cast<int32_t>(99 + more), 1.0f}};
       }},
      {"max_tokens", [](auto* r, int64_t more) { r->max_tokens = 1 - more; }},
      {"max_tokens", [](auto* r, int64_t more) { r->max_tokens = kMaxRequestTokens + more; }},
      {"min_tokens", [](auto* r, int64_t more) { r->min_tokens = 0 - more; }},
      {"min_tokens", [](auto* r, int64_t more) { r->min_tokens = INT32_MAX + more; }},
      {"min_tokens",
       [](auto* r, int64_t more) {
         r->max_tokens = 7;
         r->min_tokens = 7 + more;
       }},
      {"prompt",
       [](auto* r, int64_t more) {
         r->prompts = {std::vector<int64_t>{5, 99 + more}};
       }},
      {"prompt",
       [](auto* r, int64_t more) {
         r->prompts = {"text", std::vector{0 - more}};
       }},
      {"prompt", [](auto* r, int64_t more) { r->prompts.resize(1 - more); }},
      {"prompt", [](auto* r, int64_t more) { r->prompts.assign(kMaxPrompts + more, "text"); }},
      {"n",
       [](auto* r, int64_t more) {
         r->n = kMaxN;
         r->prompts.assign(kMaxSequencesPerCall / kMaxN + more, "text");
       }},
  };
  int number = 0;
  for (const auto& [field, change] : cases) {
    for (const int64_t more : {0, 1}) {
      GenerateRequest request;
      request.prompts.emplace_back("text");
      change(&request, more);
      EXPECT_EQ(FieldOf(CheckRequest(request, DemoModel(), /*isolate_cache=*/false)),
                more > 0 ? field : "")
          << "case " << number << ", " << field;
    }
    ++number;
  }
  GenerateRequest chat;
  chat.messages_json = "[]";
  EXPECT_TRUE(CheckRequest(chat, DemoModel(), /*isolate_cache=*/false).ok()) << "of no prompts";
}

TEST(CheckRequestTest, AnErrorNamesTheFieldAsItsFrontEndDoes) {
  GenerateRequest request;
  request.prompts.emplace_back("text");
  request.names.max_tokens = "max_new_tokens";
  request.names.min_tokens = "min_new_tokens";
  request.max_tokens = 3;
  request.min_tokens = 4;
  const absl::Status status = CheckRequest(request, DemoModel(), /*isolate_cache=*/false);
  EXPECT_EQ(FieldOf(status), "min_new_tokens");
  EXPECT_EQ(std::string(status.message()), "min_new_tokens is 4, more than max_new_tokens, 3");
}

TEST(CheckRequestTest, AnotherModelIsNotFound) {
  GenerateRequest request;
  request.prompts.emplace_back("text");
  request.model = "another";
  EXPECT_TRUE(absl::IsNotFound(CheckRequest(request, DemoModel(), /*isolate_cache=*/false)));
  request.model = "demo";
  EXPECT_TRUE(CheckRequest(request, DemoModel(), /*isolate_cache=*/false).ok());
}

TEST(CheckRequestTest, StopIdsAreBoundedInNumber) {
  GenerateRequest request;
  request.prompts.emplace_back(std::vector<int64_t>{1, 2});
  request.stop_token_ids.assign(kMaxStopIds, 7);
  EXPECT_TRUE(CheckRequest(request, DemoModel(), /*isolate_cache=*/false).ok());
  request.stop_token_ids.push_back(7);
  EXPECT_EQ(FieldOf(CheckRequest(request, DemoModel(), /*isolate_cache=*/false)), "stop_token_ids");
}

TEST(HttpStatusOfTest, TellsWhoseFaultItIsAndWhetherToComeAgain) {
  const std::pair<absl::StatusCode, int> cases[] = {
      {absl::StatusCode::kInvalidArgument, 400},   {absl::StatusCode::kOutOfRange, 400},
      {absl::StatusCode::kUnimplemented, 400},     {absl::StatusCode::kNotFound, 404},
      {absl::StatusCode::kResourceExhausted, 429}, {absl::StatusCode::kCancelled, 499},
      {absl::StatusCode::kInternal, 500},          {absl::StatusCode::kUnknown, 500},
      {absl::StatusCode::kUnavailable, 503},       {absl::StatusCode::kFailedPrecondition, 503},
      {absl::StatusCode::kAborted, 503},           {absl::StatusCode::kDeadlineExceeded, 504},
  };
  for (const auto& [code, http] : cases) {
    EXPECT_EQ(HttpStatusOf(absl::Status(code, "why")), http) << absl::StatusCodeToString(code);
  }
}

TEST(MakeSamplingParamsTest, DefaultsAreTheModels) {
  ModelInfo model = DemoModel();
  model.generation.temperature = 0.6;
  model.generation.top_p = 0.95;
  model.generation.top_k = 20;
  const absl::StatusOr<SamplingParams> params =
      MakeSamplingParams(GenerateRequest(), model, 10, 64, 77);
  ASSERT_TRUE(params.ok());
  EXPECT_FLOAT_EQ(params->temperature, 0.6f);
  EXPECT_FLOAT_EQ(params->top_p, 0.95f);
  EXPECT_EQ(params->top_k, 20);
  EXPECT_EQ(params->seed, 77);
  EXPECT_EQ(params->max_tokens, 54);
  EXPECT_EQ(params->num_logprobs, -1);
  EXPECT_THAT(params->stop_token_ids, ElementsAre(1, 2));
}

TEST(MakeSamplingParamsTest, TheRequestOverrides) {
  GenerateRequest request;
  request.temperature = 0;
  request.top_p = 1e-300;
  request.top_k = -1;
  request.seed = -1;
  request.max_tokens = 5;
  request.min_tokens = 3;
  request.num_logprobs = 0;
  request.num_prompt_logprobs = 4;
  request.ignore_eos = true;
  request.stop_token_ids = {9, 3, 9};
  request.logit_bias = {{3, -1.0f}, {7, 2.0f}};
  const absl::StatusOr<SamplingParams> params =
      MakeSamplingParams(request, DemoModel(), 10, 64, 77);
  ASSERT_TRUE(params.ok());
  EXPECT_EQ(params->temperature, 0);
  EXPECT_GT(params->top_p, 0);
  EXPECT_EQ(params->top_k, 0);
  EXPECT_EQ(params->seed, ~uint64_t{0});
  EXPECT_EQ(params->max_tokens, 5);
  EXPECT_EQ(params->min_tokens, 3);
  EXPECT_EQ(params->num_logprobs, 0);
  EXPECT_EQ(params->num_prompt_logprobs, 4);
  EXPECT_THAT(params->stop_token_ids, ElementsAre(3, 9));
  EXPECT_EQ(params->logit_bias, request.logit_bias);
}

TEST(MakeSamplingParamsTest, ADefaultLengthShrinksToTheRoomButAnAskedOneDoesNot) {
  GenerateRequest request;
  request.default_max_tokens = 16;
  EXPECT_EQ(MakeSamplingParams(request, DemoModel(), 10, 64, 0)->max_tokens, 16);
  EXPECT_EQ(MakeSamplingParams(request, DemoModel(), 60, 64, 0)->max_tokens, 4);
  request.min_tokens = 10;
  EXPECT_EQ(MakeSamplingParams(request, DemoModel(), 60, 64, 0)->min_tokens, 4);
  request.min_tokens = 0;
  request.max_tokens = 4;
  EXPECT_TRUE(MakeSamplingParams(request, DemoModel(), 60, 64, 0).ok());
  request.max_tokens = 5;
  const absl::Status status = MakeSamplingParams(request, DemoModel(), 60, 64, 0).status();
  EXPECT_EQ(ApiCodeOf(status), "context_length_exceeded");
  EXPECT_EQ(FieldOf(status), "max_tokens");
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("60"), HasSubstr("65"), HasSubstr("64")));
}

constexpr int64_t kAmple = int64_t{1} << 40;

TEST(CheckAnswerSizeTest, WhatMustWaitUntilItIsWholeIsBounded) {
  GenerateRequest request;
  request.n = 128;
  EXPECT_TRUE(CheckAnswerSize(request, 100, 8000, kAmple).ok());
  request.num_logprobs = 20;
  const absl::Status status = CheckAnswerSize(request, 100, 8000, kAmple);
  EXPECT_EQ(FieldOf(status), "max_tokens");
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("128"), HasSubstr("8000"), HasSubstr("21504000"),
                             HasSubstr("not streamed")));
  request.stream = true;
  EXPECT_TRUE(CheckAnswerSize(request, 100, 8000, kAmple).ok());
  request.num_prompt_logprobs = 20;
  EXPECT_TRUE(CheckAnswerSize(request, 100'000, 8000, kAmple).ok());
  EXPECT_EQ(FieldOf(CheckAnswerSize(request, 2'000'000, 8000, kAmple)), "prompt_logprobs");
  const int64_t limit = int64_t{100} * 21 * kPromptLogprobBytes * 4;
  EXPECT_TRUE(CheckAnswerSize(request, 100, 8000, limit).ok());
  const absl::Status small = CheckAnswerSize(request, 101, 8000, limit);
  EXPECT_EQ(FieldOf(small), "prompt_logprobs");
  EXPECT_THAT(std::string(small.message()), testing::AllOf(HasSubstr("2121"), HasSubstr("2100")));
}

TEST(CheckAnswerSizeTest, PromptsAndChoicesAreCountedTogether) {
  constexpr int64_t kHalf = kMaxAnswerValues / 2;
  GenerateRequest request;
  EXPECT_TRUE(CheckAnswerSize(request, kMaxAnswerValues, kHalf, kAmple).ok()) << "of tokens alone";
  request.num_prompt_logprobs = 0;
  EXPECT_TRUE(CheckAnswerSize(request, kHalf, kHalf, kAmple).ok());
  EXPECT_EQ(FieldOf(CheckAnswerSize(request, kHalf, kHalf + 1, kAmple)), "max_tokens");
  EXPECT_EQ(FieldOf(CheckAnswerSize(request, kHalf + 1, kHalf, kAmple)), "max_tokens");
  EXPECT_TRUE(CheckAnswerSize(request, kMaxAnswerValues, 0, kAmple).ok());
  EXPECT_EQ(FieldOf(CheckAnswerSize(request, kMaxAnswerValues + 1, 0, kAmple)), "prompt_logprobs");
}

TEST(MakeSamplingParamsTest, APromptThatLeavesRoomForOneTokenGetsOne) {
  const absl::StatusOr<SamplingParams> params =
      MakeSamplingParams(GenerateRequest(), DemoModel(), 63, 64, 0);
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_EQ(params->max_tokens, 1);
}

TEST(MakeSamplingParamsTest, APromptThatFillsTheContextIsRefused) {
  const absl::Status status =
      MakeSamplingParams(GenerateRequest(), DemoModel(), 64, 64, 0).status();
  EXPECT_EQ(ApiCodeOf(status), "context_length_exceeded");
  EXPECT_EQ(FieldOf(status), "prompt");
  EXPECT_EQ(FieldOf(MakeSamplingParams(GenerateRequest(), DemoModel(), 0, 64, 0).status()),
            "prompt");
}

}  // namespace
}  // namespace tandem
