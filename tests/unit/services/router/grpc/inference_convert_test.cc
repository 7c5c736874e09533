#include "services/router/grpc/inference_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "services/router/api_error.h"

namespace tandem {
namespace {

using testing::ElementsAre;

SampledToken Sampled(int32_t token, float logprob, int32_t rank) {
  return {.token = token,
          .logprob = logprob,
          .rank = rank,
          .top = {{.token = 4, .logprob = -0.25f}, {.token = 9, .logprob = -0.5f}}};
}

ChoiceOutput Token(int choice, const std::string& text, FinishReason finish = FinishReason::kNone) {
  return {.choice = choice, .token = Sampled(7, -1.5f, 3), .text = text, .finish = finish};
}

GenerateRequest Parsed(const v1::GenerateRequest& request) {
  const absl::StatusOr<GenerateRequest> parsed = FromInferenceProto(request);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

TEST(InferenceConvertTest, APromptIsATextOrTokenIds) {
  v1::GenerateRequest request;
  EXPECT_EQ(FieldOf(FromInferenceProto(request).status()), "prompt");
  request.set_text("a text");
  ASSERT_EQ(Parsed(request).prompts.size(), 1u);
  EXPECT_EQ(std::get<std::string>(Parsed(request).prompts[0]), "a text");
  for (const uint32_t id : {5, 6}) request.mutable_token_ids()->add_ids(id);
  ASSERT_EQ(Parsed(request).prompts.size(), 1u);
  EXPECT_THAT(std::get<std::vector<int64_t>>(Parsed(request).prompts[0]), ElementsAre(5, 6));
}

TEST(InferenceConvertTest, WhatIsNotSaidIsLeftToTheModel) {
  v1::GenerateRequest request;
  request.set_text("a");
  const GenerateRequest r = Parsed(request);
  EXPECT_EQ(r.model, "");
  EXPECT_EQ(r.n, 1);
  EXPECT_FALSE(r.temperature || r.top_p || r.top_k || r.seed || r.max_tokens || r.num_logprobs ||
               r.num_prompt_logprobs || r.cache_salt);
  EXPECT_TRUE(r.skip_special_tokens);
  EXPECT_FALSE(r.ignore_eos);
}

TEST(InferenceConvertTest, WhatIsSaidArrives) {
  v1::GenerateRequest request;
  request.set_text("a");
  request.set_model("mine");
  request.set_temperature(0);
  request.mutable_sampling()->set_num_sequences(3);
  request.mutable_sampling()->set_seed(-1);
  request.mutable_response()->set_skip_special_tokens(false);
  request.set_cache_salt("");
  const GenerateRequest r = Parsed(request);
  EXPECT_EQ(r.model, "mine");
  EXPECT_EQ(r.temperature, 0);
  EXPECT_EQ(r.n, 3);
  EXPECT_EQ(r.seed, -1);
  EXPECT_FALSE(r.skip_special_tokens);
  EXPECT_EQ(r.cache_salt, "") << "which is refused";
}

TEST(InferenceConvertTest, WhatIsWrongIsNamedAsItIsCalledHere) {
  const ModelInfo model{.served_name = "m", .vocab_size = 100, .max_model_tokens = 64};
  const std::pair<std::string, std::function<void(v1::GenerateRequest*)>> cases[] = {
      {"sampling.top_p", [](auto* r) { r->mutable_sampling()->set_top_p(2); }},
      {"sampling.top_k", [](auto* r) { r->mutable_sampling()->set_top_k(4'000'000'000u); }},
      {"sampling.num_sequences", [](auto* r) { r->mutable_sampling()->set_num_sequences(999); }},
      {"stopping.max_new_tokens",
       [](auto* r) { r->mutable_stopping()->set_max_new_tokens(4'000'000'000u); }},
      {"stopping.min_new_tokens",
       [](auto* r) {
         r->mutable_stopping()->set_max_new_tokens(2);
         r->mutable_stopping()->set_min_new_tokens(3);
       }},
      {"stopping.stop_strings", [](auto* r) { r->mutable_stopping()->add_stop_strings(""); }},
      {"stopping.stop_token_ids", [](auto* r) { r->mutable_stopping()->add_stop_token_ids(100); }},
      {"response.output_candidates.top_n",
       [](auto* r) { r->mutable_response()->mutable_output_candidates()->set_top_n(21); }},
      {"response.prompt_candidates.top_n",
       [](auto* r) { r->mutable_response()->mutable_prompt_candidates()->set_top_n(21); }},
      {"temperature", [](auto* r) { r->set_temperature(9); }},
      {"cache_salt", [](auto* r) { r->set_cache_salt(""); }},
      {"logit_bias", [](auto* r) { (*r->mutable_logit_bias())[100] = 1; }},
      {"model", [](auto* r) { r->set_model("other"); }},
      {"prompt", [](auto* r) { r->mutable_token_ids()->add_ids(100); }},
  };
  for (const auto& [field, spoil] : cases) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->add_ids(5);
    const auto check = [&] {
      return CheckRequest(Parsed(request), model, /*isolate_cache=*/false);
    };
    EXPECT_TRUE(check().ok()) << check();
    spoil(&request);
    EXPECT_EQ(FieldOf(check()), field) << check();
  }
}

TEST(InferenceConvertTest, EveryMessageHasTheTokensOfItsOwnAndTheLastAllThatThereWere) {
  v1::GenerateRequest request;
  request.mutable_response()->set_output_token_ids(true);
  InferenceAnswer answer(request);
  const auto said = [&](const CallOutput& output) {
    v1::GenerateResponse response;
    EXPECT_TRUE(answer.Add(output, {1, 2}, &response));
    EXPECT_EQ(response.outputs_size(), 1);
    EXPECT_EQ(response.outputs(0).num_tokens(), 1);
    EXPECT_THAT(response.outputs(0).token_ids(), ElementsAre(7));
    return response.outputs(0);
  };
  EXPECT_EQ(said(Token(1, "a")).index(), 1);
  EXPECT_FALSE(said(Token(0, "b")).has_finish_info());
  EXPECT_EQ(said(Token(1, "c")).text(), "c");
  EXPECT_EQ(said(Token(1, "", FinishReason::kLength)).finish_info().num_output_tokens(), 3);
  const v1::FinishInfo stop = said(Token(0, "", FinishReason::kStop)).finish_info();
  EXPECT_EQ(stop.num_output_tokens(), 2);
  EXPECT_EQ(stop.finish_reason(), v1::FinishInfo::STOP);
  v1::GenerateResponse last;
  EXPECT_FALSE(answer.Add(CallEnd{}, {1, 2}, &last)) << "the status says it";
}

TEST(InferenceConvertTest, CandidatesAreTheLikeliestInTheirOrder) {
  v1::GenerateRequest request;
  request.mutable_response()->mutable_output_candidates()->set_top_n(2);
  request.mutable_response()->mutable_prompt_candidates()->set_top_n(1);
  InferenceAnswer answer(request);
  v1::GenerateResponse response;
  EXPECT_FALSE(answer.Add(PromptOutput{.cached_tokens = 16, .prompt_logprobs = {Sampled(2, -3, 5)}},
                          {1, 2}, &response))
      << "it travels with the first token";
  EXPECT_TRUE(answer.Add(Token(0, "a"), {1, 2}, &response));
  const v1::PromptInfo& prompt = response.prompt_info();
  EXPECT_EQ(prompt.num_prompt_tokens(), 2);
  EXPECT_EQ(prompt.num_cached_tokens(), 16);
  EXPECT_THAT(prompt.logprobs(), ElementsAre(-3));
  EXPECT_THAT(prompt.ranks(), ElementsAre(5));
  ASSERT_EQ(prompt.candidate_tokens_size(), 1);
  EXPECT_EQ(prompt.candidate_tokens(0).tokens_size(), 1);
  const v1::SequenceOutput& output = response.outputs(0);
  EXPECT_THAT(output.logprobs(), ElementsAre(-1.5f));
  EXPECT_THAT(output.ranks(), ElementsAre(3));
  ASSERT_EQ(output.candidate_tokens_size(), 1);
  ASSERT_EQ(output.candidate_tokens(0).tokens_size(), 2);
  const auto& second = output.candidate_tokens(0).tokens(1);
  EXPECT_EQ(second.id(), 9);
  EXPECT_EQ(second.logprob(), -0.5f);
  EXPECT_EQ(second.rank(), 2);
}

// What protobuf says that it takes, and its copy on the wire.
TEST(InferenceConvertTest, AnAnswerTakesNoMoreThanItIsChargedFor) {
  v1::GenerateRequest request;
  request.mutable_response()->set_output_token_ids(true);
  request.mutable_response()->mutable_output_candidates()->set_top_n(2);
  request.mutable_response()->mutable_prompt_candidates()->set_top_n(2);
  PromptOutput prompt;
  for (int i = 0; i < 1000; ++i) prompt.prompt_logprobs.push_back(Sampled(2, -3, 5));
  for (const CallOutput& output :
       std::vector<CallOutput>{prompt, Token(0, std::string(10'000, 't'))}) {
    v1::GenerateResponse response;
    InferenceAnswer(request).Add(output, {}, &response);
    const auto taken = static_cast<int64_t>(response.SpaceUsedLong() + response.ByteSizeLong());
    EXPECT_GE(ResponseBytes(output) + 1000, taken);  // A message's frame is the call's.
  }
}

}  // namespace
}  // namespace tandem
