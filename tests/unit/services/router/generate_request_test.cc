#include "services/router/generate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/router/api_error.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelInfo DemoModel() {
  ModelInfo model;
  model.served_name = "demo";
  model.vocab_size = 100;
  model.max_model_tokens = 64;
  model.eos_token_ids = {1, 2};
  return model;
}

TEST(MakeSamplingParamsTest, DefaultsAreTheModels) {
  ModelInfo model = DemoModel();
  model.temperature = 0.6;
  model.top_p = 0.95;
  model.top_k = 20;
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
}

TEST(MakeSamplingParamsTest, ADefaultLengthShrinksToTheRoomButAnAskedOneDoesNot) {
  GenerateRequest request;
  request.default_max_tokens = 16;
  EXPECT_EQ(MakeSamplingParams(request, DemoModel(), 10, 64, 0)->max_tokens, 16);
  EXPECT_EQ(MakeSamplingParams(request, DemoModel(), 60, 64, 0)->max_tokens, 4);
  request.max_tokens = 5;
  const absl::Status status = MakeSamplingParams(request, DemoModel(), 60, 64, 0).status();
  EXPECT_EQ(ApiCodeOf(status), "context_length_exceeded");
  EXPECT_EQ(FieldOf(status), "max_tokens");
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("60"), HasSubstr("65"), HasSubstr("64")));
}

TEST(MakeSamplingParamsTest, APromptThatFillsTheContextIsRefused) {
  const absl::Status status =
      MakeSamplingParams(GenerateRequest(), DemoModel(), 64, 64, 0).status();
  EXPECT_EQ(ApiCodeOf(status), "context_length_exceeded");
  EXPECT_EQ(FieldOf(status), "prompt");
  EXPECT_EQ(FieldOf(MakeSamplingParams(GenerateRequest(), DemoModel(), 0, 64, 0).status()),
            "prompt");
}

TEST(ParseModelInfoTest, ReadsEndTokensAndDefaults) {
  const absl::StatusOr<ModelInfo> info =
      ParseModelInfo(R"({"vocab_size":100,"max_position_embeddings":64,"eos_token_id":5})",
                     R"({"eos_token_id":[1,2],"temperature":0.6,"top_p":0.9,"top_k":50})");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_THAT(info->eos_token_ids, ElementsAre(1, 2));
  EXPECT_EQ(info->temperature, 0.6);
  EXPECT_EQ(info->top_p, 0.9);
  EXPECT_EQ(info->top_k, 50);
}

TEST(ParseModelInfoTest, FallsBackToTheConfigsEndTokenAndReadsGpt2Names) {
  const absl::StatusOr<ModelInfo> info =
      ParseModelInfo(R"({"vocab_size":100,"n_positions":32,"eos_token_id":5})", "");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->max_model_tokens, 32);
  EXPECT_THAT(info->eos_token_ids, ElementsAre(5));
  EXPECT_EQ(info->temperature, 1.0);
}

TEST(ParseModelInfoTest, BrokenFilesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", ""},
      {"[]", ""},
      {R"({"max_position_embeddings":64})", ""},
      {R"({"vocab_size":100})", ""},
      {R"({"vocab_size":-1,"max_position_embeddings":64})", ""},
      {R"({"vocab_size":"x","max_position_embeddings":64})", ""},
      {R"({"vocab_size":100,"max_position_embeddings":64,"eos_token_id":100})", ""},
      {R"({"vocab_size":100,"max_position_embeddings":64})", R"({"eos_token_id":"a"})"},
      {R"({"vocab_size":100,"max_position_embeddings":64})", R"({"temperature":-1})"},
      {R"({"vocab_size":100,"max_position_embeddings":64})", R"({"top_p":"x"})"},
  };
  for (const auto& [config, generation] : cases) {
    const absl::Status status = ParseModelInfo(config, generation).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << config << generation;
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.json"));
  }
}

}  // namespace
}  // namespace tandem
