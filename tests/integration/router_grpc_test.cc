#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "runtime/request/request_sink.h"
#include "services/router/api_limits.h"
#include "services/server/api_keys.h"
#include "services/server/http2_gate.h"
#include "services/server/open_calls.h"
#include "tandem/v1/inference.grpc.pb.h"
#include "tests/integration/router_fixture.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::ElementsAreArray;

class RouterGrpcTest : public RouterFixture {
 protected:
  void StartAndDial(std::vector<FakeWorkerOptions> workers) {
    Start(std::move(workers));
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(router_->grpc_port()),
                                   grpc::InsecureChannelCredentials());
    inference_ = v1::Inference::NewStub(channel_);
    control_ = v1::Control::NewStub(channel_);
  }
  static v1::GenerateRequest Request(int max_tokens) {
    v1::GenerateRequest request;
    for (const uint32_t id : {10, 11, 12}) request.mutable_token_ids()->add_ids(id);
    request.mutable_sampling()->set_seed(7);
    request.mutable_stopping()->set_max_new_tokens(max_tokens);
    request.mutable_response()->set_output_token_ids(true);
    return request;
  }
  std::vector<uint32_t> Want(int choice, int count) {
    std::vector<uint32_t> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(FakeToken(options_[0], {10, 11, 12}, 7, choice, 3 + i));
    }
    return tokens;
  }
  grpc::StatusCode CodeOf(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    return inference_->Generate(&context, request, &response).error_code();
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Control::Stub> control_;
};

TEST_F(RouterGrpcTest, AWholeAnswerHoldsEveryChoiceInOrder) {
  StartAndDial({{.choice_0_begins_last = true}});
  v1::GenerateRequest request = Request(9);
  request.mutable_sampling()->set_num_sequences(3);
  request.mutable_response()->mutable_output_candidates()->set_top_n(2);
  request.mutable_response()->set_prompt_token_ids(true);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  const grpc::Status status = inference_->Generate(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.prompt_info().num_prompt_tokens(), 3);
  EXPECT_THAT(response.prompt_info().token_ids(), testing::ElementsAre(10, 11, 12));
  EXPECT_EQ(response.prompt_info().system_fingerprint(), "fake-numerics");
  ASSERT_EQ(response.outputs_size(), 3);
  for (int i = 0; i < 3; ++i) {
    const v1::SequenceOutput& output = response.outputs(i);
    EXPECT_EQ(output.index(), i);
    EXPECT_THAT(output.token_ids(), ElementsAreArray(Want(i, 9)));
    EXPECT_EQ(output.logprobs_size(), 9);
    EXPECT_EQ(output.candidate_tokens(0).tokens_size(), 2);
    EXPECT_FALSE(output.text().empty());
    EXPECT_EQ(output.finish_info().finish_reason(), v1::FinishInfo::LENGTH);
    EXPECT_EQ(output.finish_info().num_output_tokens(), 9);
  }
}

TEST_F(RouterGrpcTest, AWholeAnswerIsChargedAsItGrows) {
  constexpr int kTokens = 500, kTop = 20;
  FakeWorkerOptions worker;
  worker.hold_after_tokens = kTokens;
  StartAndDial({worker});
  v1::GenerateRequest request = Request(2 * kTokens - 100);
  request.mutable_response()->mutable_output_candidates()->set_top_n(kTop);
  EXPECT_EQ(CodeOf(Request(1)), grpc::StatusCode::OK);
  const double least = Metric("tandem_memory_held_bytes") + kTokens * kTop * 64;
  grpc::ClientContext context;
  std::thread client([&] {
    v1::GenerateResponse response;
    EXPECT_EQ(inference_->Generate(&context, request, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  EXPECT_TRUE(Eventually([&] { return Metric("tandem_memory_held_bytes") > least; }));
  context.TryCancel();
  client.join();
  EXPECT_TRUE(Eventually([&] { return Metric("tandem_memory_held_bytes") < least; }));
}

TEST_F(RouterGrpcTest, WhatIsTooLongForAWholeAnswerIsStreamed) {
  FakeWorkerOptions options;
  options.max_model_tokens = 8000;
  options.hold_after_tokens = 1;
  StartAndDial({options});
  v1::GenerateRequest request = Request(2000);
  request.mutable_sampling()->set_num_sequences(128);
  request.mutable_response()->mutable_output_candidates()->set_top_n(20);
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  const auto stream = inference_->GenerateStream(&context, request);
  v1::GenerateResponse response;
  EXPECT_TRUE(stream->Read(&response));
  context.TryCancel();
  stream->Finish();
}

TEST_F(RouterGrpcTest, AMessageMayBeSoLongAndNoLonger) {
  StartAndDial({FakeWorkerOptions()});
  v1::GenerateRequest request;
  request.set_text(std::string(kMaxGrpcMessageBytes - 5, ' '));
  ASSERT_EQ(request.ByteSizeLong(), kMaxGrpcMessageBytes);
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT) << "too long for its context";
  request.mutable_text()->push_back(' ');
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RouterGrpcTest, ALongRequestNeedsRoomToWaitIn) {
  memory_limit_bytes_ = int64_t{16} << 20;
  StartAndDial({FakeWorkerOptions()});
  v1::GenerateRequest request;
  request.set_text(std::string(3 << 20, ' '));
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Metric("tandem_refused_calls_total{code=\"RESOURCE_EXHAUSTED\"}"), 1);
}

TEST_F(RouterGrpcTest, AStreamSaysTheSameTokenByToken) {
  StartAndDial({FakeWorkerOptions()});
  grpc::ClientContext context;
  const auto stream = inference_->GenerateStream(&context, Request(30));
  v1::GenerateResponse response;
  std::vector<uint32_t> tokens;
  while (stream->Read(&response)) {
    EXPECT_EQ(response.has_prompt_info(), tokens.empty());
    ASSERT_EQ(response.outputs_size(), 1);
    for (const uint32_t id : response.outputs(0).token_ids()) tokens.push_back(id);
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_THAT(tokens, ElementsAreArray(Want(0, 30)));
}

TEST_F(RouterGrpcTest, ADroppedStreamAbortsItsRequest) {
  FakeWorkerOptions options;
  options.hold_after_tokens = 2;
  StartAndDial({options});
  {
    grpc::ClientContext context;
    const auto stream = inference_->GenerateStream(&context, Request(50));
    v1::GenerateResponse response;
    ASSERT_TRUE(stream->Read(&response));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_cancels() == 1; }));
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_running() == 0; }));
}

TEST_F(RouterGrpcTest, ARequestIdIsShort) {
  StartAndDial({FakeWorkerOptions{}});
  v1::GenerateRequest request = Request(5);
  v1::GenerateResponse response;
  request.set_request_id(std::string(kMaxRequestIdBytes, 'i'));
  grpc::ClientContext context;
  EXPECT_TRUE(inference_->Generate(&context, request, &response).ok());
  request.set_request_id(std::string(kMaxRequestIdBytes + 1, 'i'));
  grpc::ClientContext too_long;
  const grpc::Status status = inference_->Generate(&too_long, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("129"), std::string::npos);
}

TEST_F(RouterGrpcTest, AbortEndsTheNamedRequestOnly) {
  FakeWorkerOptions options;
  options.hold_after_tokens = 2;
  StartAndDial({options});
  grpc::ClientContext first_context, second_context;
  v1::GenerateRequest first = Request(5), second = Request(5);
  first.set_request_id("first");
  second.set_request_id("second");
  const auto first_stream = inference_->GenerateStream(&first_context, first);
  const auto second_stream = inference_->GenerateStream(&second_context, second);
  v1::GenerateResponse response;
  ASSERT_TRUE(first_stream->Read(&response));
  ASSERT_TRUE(second_stream->Read(&response));
  v1::AbortRequest abort;
  abort.add_request_ids("first");
  abort.add_request_ids("nobody");
  v1::AbortResponse answer;
  grpc::ClientContext context;
  EXPECT_TRUE(control_->Abort(&context, abort, &answer).ok());
  while (first_stream->Read(&response)) {
  }
  EXPECT_EQ(first_stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  workers_[0]->ReleaseHeld();
  while (second_stream->Read(&response)) {
  }
  EXPECT_TRUE(second_stream->Finish().ok());
}

TEST_F(RouterGrpcTest, ACallsDeadlineIsItsRequests) {
  FakeWorkerOptions options;
  options.hold_after_tokens = 1;
  StartAndDial({options});
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::GenerateResponse response;
  EXPECT_EQ(inference_->Generate(&context, Request(50), &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GT(workers_[0]->last_submit().spec.time_left_us, 0);
  EXPECT_LE(workers_[0]->last_submit().spec.time_left_us, 3'000'000);  // gRPC rounds it up.
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_running() == 0; }));
  // The session to the worker stands: what was cancelled late was cancelled in a valid way.
  workers_[0]->ReleaseHeld();
  EXPECT_EQ(CodeOf(Request(5)), grpc::StatusCode::OK);
  EXPECT_EQ(Metric("tandem_stream_resumes_total{reason=\"session_lost\"}"), 0);
}

TEST_F(RouterGrpcTest, ADeadlineFarAwayCannotHurtASession) {
  StartAndDial({FakeWorkerOptions()});
  for (const int days : {100, 4000}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(24 * days));
    v1::GenerateResponse response;
    EXPECT_TRUE(inference_->Generate(&context, Request(3), &response).ok());
    const bool is_one = workers_[0]->last_submit().spec.time_left_us > kDefaultDeadlineUs;
    EXPECT_EQ(is_one, days < 365) << "else it is as if there were none";
  }
}

TEST_F(RouterGrpcTest, ABiasReachesTheWorkerInRisingIds) {
  StartAndDial({FakeWorkerOptions()});
  v1::GenerateRequest request = Request(2);
  for (const int32_t token : {4000, 3, 500, 77}) {
    (*request.mutable_logit_bias())[token] = static_cast<float>(token % 100);
  }
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::OK);
  EXPECT_EQ(workers_[0]->last_submit().spec.sampling.logit_bias,
            (std::vector<TokenBias>{{3, 3.0f}, {77, 77.0f}, {500, 0.0f}, {4000, 0.0f}}));
  const auto message = [&](int32_t token, float bias) {
    v1::GenerateRequest bad = Request(2);
    (*bad.mutable_logit_bias())[token] = bias;
    grpc::ClientContext context;
    v1::GenerateResponse response;
    const grpc::Status status = inference_->Generate(&context, bad, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  using testing::HasSubstr;
  EXPECT_THAT(message(4096, 1), HasSubstr("logit_bias has token id 4096, must be from 0 to 4095"));
  EXPECT_THAT(message(-1, 1), HasSubstr("logit_bias has token id -1"));
  EXPECT_THAT(message(5, NAN), HasSubstr("logit_bias is nan for token id 5"));
  EXPECT_THAT(message(5, -101), HasSubstr("logit_bias is -101 for token id 5"));
}

TEST_F(RouterGrpcTest, WhatARequestSaysReachesTheWorker) {
  StartAndDial({FakeWorkerOptions()});
  const auto sent = [this](const v1::GenerateRequest& request) {
    EXPECT_EQ(CodeOf(request), grpc::StatusCode::OK);
    return workers_[0]->last_submit().spec;
  };
  v1::GenerateRequest request = Request(5);
  const RequestSpec plain = sent(request);
  EXPECT_EQ(plain.sampling.temperature, 1);
  EXPECT_EQ(plain.sampling.top_p, 1);
  EXPECT_EQ(plain.sampling.top_k, 0);
  EXPECT_EQ(plain.sampling.min_tokens, 0);
  EXPECT_EQ(plain.sampling.num_logprobs, -1);
  EXPECT_EQ(plain.sampling.num_prompt_logprobs, -1);
  EXPECT_EQ(plain.sampling.stop_token_ids, std::vector<int32_t>{1}) << "the model's end";

  request.set_temperature(0.5f);
  request.mutable_sampling()->set_top_p(0.25f);
  request.mutable_sampling()->set_top_k(40);
  request.mutable_stopping()->set_min_new_tokens(2);
  request.mutable_stopping()->add_stop_token_ids(4095);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_response()->set_output_logprobs(true);
  request.mutable_response()->set_prompt_logprobs(true);
  request.set_cache_salt("tenant");
  const RequestSpec told = sent(request);
  EXPECT_EQ(told.sampling.temperature, 0.5f);
  EXPECT_EQ(told.sampling.top_p, 0.25f);
  EXPECT_EQ(told.sampling.top_k, 40);
  EXPECT_EQ(told.sampling.seed, 7);
  EXPECT_EQ(told.sampling.max_tokens, 5);
  EXPECT_EQ(told.sampling.min_tokens, 2);
  EXPECT_EQ(told.sampling.num_logprobs, 0);
  EXPECT_EQ(told.sampling.num_prompt_logprobs, 0);
  EXPECT_EQ(told.sampling.stop_token_ids, std::vector<int32_t>{4095});
  EXPECT_NE(told.hash_root, plain.hash_root);

  request.mutable_response()->mutable_output_candidates()->set_top_n(3);
  request.mutable_response()->mutable_prompt_candidates()->set_top_n(2);
  request.mutable_stopping()->set_max_new_tokens(0);
  const RequestSpec most = sent(request);
  EXPECT_EQ(most.sampling.num_logprobs, 3);
  EXPECT_EQ(most.sampling.num_prompt_logprobs, 2);
  EXPECT_EQ(most.sampling.max_tokens, 1024 - 3);
}

TEST_F(RouterGrpcTest, WhatEndedASequenceIsNamed) {
  const auto tokenizer = *Tokenizer::Create(Folder());
  FakeWorkerOptions options;
  options.script = *tokenizer->Encode("alpha beta gamma", /*add_special_tokens=*/false);
  options.script.push_back(1);  // The model's end.
  StartAndDial({options});
  const auto output = [this](const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    EXPECT_TRUE(inference_->Generate(&context, request, &response).ok());
    EXPECT_EQ(response.outputs_size(), 1);
    EXPECT_EQ(response.outputs(0).finish_info().finish_reason(), v1::FinishInfo::STOP);
    return response.outputs(0);
  };
  const v1::SequenceOutput by_end = output(Request(50));
  EXPECT_EQ(by_end.finish_info().stop_reason_case(), v1::FinishInfo::kEosTokenId);
  EXPECT_EQ(by_end.finish_info().eos_token_id(), 1);
  EXPECT_EQ(by_end.finish_info().num_output_tokens(), options.script.size());
  EXPECT_EQ(by_end.text(), "alpha beta gamma");
  v1::GenerateRequest request = Request(50);
  request.mutable_stopping()->add_stop_strings("beta");
  const v1::SequenceOutput by_text = output(request);
  EXPECT_EQ(by_text.finish_info().stop_string(), "beta");
  EXPECT_EQ(by_text.text(), "alpha ");
  request = Request(50);
  request.mutable_stopping()->add_stop_token_ids(static_cast<uint32_t>(options.script[1]));
  const v1::SequenceOutput by_id = output(request);
  EXPECT_EQ(by_id.finish_info().stop_reason_case(), v1::FinishInfo::kStopTokenId);
  EXPECT_EQ(by_id.finish_info().stop_token_id(), static_cast<uint32_t>(options.script[1]));
  EXPECT_EQ(by_id.token_ids_size(), 2);
}

TEST_F(RouterGrpcTest, AnAnswerHoldsWhatIsAskedForAndNoMore) {
  constexpr int kPrompt = 20, kCached = 16;
  StartAndDial({FakeWorkerOptions()});
  v1::GenerateRequest request = Request(2);
  for (int i = request.token_ids().ids_size(); i < kPrompt; ++i) {
    request.mutable_token_ids()->add_ids(20);
  }
  const auto answer = [&] {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    EXPECT_TRUE(inference_->Generate(&context, request, &response).ok());
    EXPECT_EQ(response.outputs_size(), 1);
    EXPECT_EQ(response.outputs(0).num_tokens(), 2);
    return response;
  };
  request.mutable_response()->set_output_text(false);
  request.mutable_response()->set_output_token_ids(false);
  const v1::GenerateResponse least = answer();
  EXPECT_EQ(least.prompt_info().num_prompt_tokens(), kPrompt);
  EXPECT_EQ(least.prompt_info().num_cached_tokens(), kCached);
  EXPECT_EQ(least.prompt_info().token_ids_size(), 0);
  EXPECT_EQ(least.prompt_info().logprobs_size(), 0);
  EXPECT_EQ(least.outputs(0).text(), "");
  EXPECT_EQ(least.outputs(0).token_ids_size(), 0);
  EXPECT_EQ(least.outputs(0).logprobs_size(), 0);
  EXPECT_EQ(least.outputs(0).candidate_tokens_size(), 0);

  request.mutable_response()->set_output_text(true);
  request.mutable_response()->set_output_logprobs(true);
  request.mutable_response()->mutable_prompt_candidates()->set_top_n(2);
  const v1::GenerateResponse more = answer();
  const v1::PromptInfo& prompt = more.prompt_info();
  ASSERT_EQ(prompt.logprobs_size(), kPrompt - 1);
  EXPECT_EQ(prompt.logprobs(1), -1.0f);
  EXPECT_EQ(prompt.ranks(0), 2);
  ASSERT_EQ(prompt.candidate_tokens_size(), kPrompt - 1);
  ASSERT_EQ(prompt.candidate_tokens(0).tokens_size(), 2);
  EXPECT_EQ(prompt.candidate_tokens(0).tokens(1).id(), 5);
  EXPECT_EQ(prompt.candidate_tokens(0).tokens(1).rank(), 2);
  EXPECT_FALSE(more.outputs(0).text().empty());
  EXPECT_EQ(more.outputs(0).logprobs_size(), 2);
  EXPECT_EQ(more.outputs(0).ranks_size(), 2);
  EXPECT_EQ(more.outputs(0).candidate_tokens_size(), 0);
}

TEST_F(RouterGrpcTest, WrongRequestsHaveRealStatusCodes) {
  StartAndDial({FakeWorkerOptions()});
  v1::GenerateRequest request = Request(5);
  request.set_temperature(9);
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  request = Request(5);
  request.set_model("nobody");
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::NOT_FOUND);
  request = Request(5);
  request.mutable_token_ids()->add_ids(99999);
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  request = Request(5);
  request.clear_prompt();
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  request = Request(2000);
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  request = Request(5);
  request.mutable_sampling()->set_num_sequences(4'000'000'000u);
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(Request(5)), grpc::StatusCode::OK);
  EXPECT_EQ(Metric("tandem_refused_calls_total{code=\"INVALID_ARGUMENT\"}"), 5);
  EXPECT_EQ(Metric("tandem_refused_calls_total{code=\"NOT_FOUND\"}"), 1);
}

TEST_F(RouterGrpcTest, ARequestThatFailsBeforeItsFirstByteWasNotRefused) {
  FakeWorkerOptions options;
  options.hold_after_tokens = 0;
  StartAndDial({options});
  RawHttp streaming(http()), whole(http());
  const std::string id = "X-Request-Id: mine\r\n";
  streaming.SendRequest("/v1/completions", R"({"prompt":"a","stream":true})", id);
  whole.SendRequest("/v1/completions", R"({"prompt":"b"})", id);
  ASSERT_TRUE(Eventually([&] { return workers_[0]->num_running() == 2; }));
  v1::AbortRequest abort;
  abort.add_request_ids("mine");
  v1::AbortResponse answer;
  grpc::ClientContext context;
  EXPECT_TRUE(control_->Abort(&context, abort, &answer).ok());
  EXPECT_EQ(streaming.Read().status, 499);
  EXPECT_EQ(whole.Read().status, 499);
  EXPECT_EQ(Metric("tandem_requests_total{outcome=\"cancelled\"}"), 2);
  EXPECT_EQ(Metric("tandem_refused_calls_total{code=\"CANCELLED\"}"), -1);
}

TEST_F(RouterGrpcTest, ARouterThatEndsTellsItsClientsWhy) {
  FakeWorkerOptions options;
  options.hold_after_tokens = 2;
  StartAndDial({options});
  RawHttp streaming(http()), whole(http());
  streaming.SendRequest("/v1/completions", R"({"prompt":"a","max_tokens":50,"stream":true})");
  whole.SendRequest("/v1/completions", R"({"prompt":"b","max_tokens":50})");
  ASSERT_TRUE(streaming.ReadUntil("data: "));
  grpc::ClientContext context;
  const auto stream = inference_->GenerateStream(&context, Request(50));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(Eventually([&] { return workers_[0]->num_running() == 3; }));
  router_.reset();
  const std::string body = streaming.Read().body;
  EXPECT_NE(body.find("\"service_unavailable_error\""), std::string::npos) << body;
  EXPECT_EQ(body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(whole.Read().status, 503);
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(RouterGrpcTest, InfoAndHealthTellWhatIsServed) {
  StartAndDial({FakeWorkerOptions()});
  grpc::ClientContext server_context, model_context, unknown_context;
  v1::ServerInfo server;
  ASSERT_TRUE(control_->GetServerInfo(&server_context, {}, &server).ok());
  EXPECT_EQ(server.num_workers(), 1);
  EXPECT_EQ(server.max_model_len(), 1024);
  EXPECT_EQ(server.total_kv_blocks(), 1024);
  EXPECT_TRUE(server.ready());
  v1::ModelInfo model;
  ASSERT_TRUE(control_->GetModelInfo(&model_context, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "demo_model");
  EXPECT_EQ(model.vocab_size(), 4096);
  EXPECT_EQ(model.system_fingerprint(), "fake-numerics");

  EXPECT_EQ(server.api_version(), "tandem.v1");
  EXPECT_EQ(server.engine_version(), TANDEM_VERSION);
  EXPECT_EQ(server.instance_id(), "router");
  EXPECT_EQ(model.model_id(), "demo_model");
  EXPECT_THAT(model.served_model_aliases(), testing::ElementsAre("default"));
  EXPECT_TRUE(model.supports_text_input() && model.supports_token_ids_input());
  EXPECT_THAT(model.eos_token_ids(), testing::ElementsAre(1));

  const auto health = grpc::health::v1::Health::NewStub(channel_);
  grpc::health::v1::HealthCheckRequest check;
  grpc::health::v1::HealthCheckResponse status;
  for (const char* const service : {"tandem.v1.Inference", "tandem.v1.Control"}) {
    grpc::ClientContext health_context;
    check.set_service(service);
    ASSERT_TRUE(health->Check(&health_context, check, &status).ok()) << service;
    EXPECT_EQ(status.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  }
  check.set_service("nothing");
  EXPECT_EQ(health->Check(&unknown_context, check, &status).error_code(),
            grpc::StatusCode::NOT_FOUND);
  check.clear_service();
  grpc::ClientContext watch_context;
  const auto watch = health->Watch(&watch_context, check);
  ASSERT_TRUE(watch->Read(&status));
  EXPECT_EQ(status.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  router_->BeginDrain();
  ASSERT_TRUE(watch->Read(&status));
  EXPECT_EQ(status.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
}

TEST_F(RouterGrpcTest, WithKeysWhoHasNoneHearsOnlyHowItIs) {
  const TempFolder folder;
  const std::string key = MakeApiKey(), wrong = MakeApiKey();
  api_key_file_ = folder.Write("keys", ApiKeyLine("ann", key));
  StartAndDial({FakeWorkerOptions()});
  const auto codes = [this](const std::vector<std::string>& keys) {
    grpc::ClientContext whole, streamed, control;
    for (grpc::ClientContext* context : {&whole, &streamed, &control}) {
      for (const std::string& shown : keys) context->AddMetadata("authorization", shown);
    }
    v1::GenerateResponse response;
    v1::ServerInfo server;
    const auto stream = inference_->GenerateStream(&streamed, Request(1));
    while (stream->Read(&response)) {
    }
    return std::vector<int>{inference_->Generate(&whole, Request(1), &response).error_code(),
                            stream->Finish().error_code(),
                            control_->GetServerInfo(&control, {}, &server).error_code()};
  };
  const std::vector<int> refused(3, grpc::StatusCode::UNAUTHENTICATED);
  const std::string good = "Bearer " + key, bad = "Bearer " + wrong;
  for (const auto& keys :
       std::vector<std::vector<std::string>>{{}, {bad}, {good, bad}, {bad, good}, {good, good}}) {
    EXPECT_EQ(codes(keys), refused) << keys.size();
  }
  EXPECT_EQ(workers_[0]->num_submits(), 0);
  EXPECT_EQ(codes({good}), std::vector<int>(3, grpc::StatusCode::OK));
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse status;
  const auto health = grpc::health::v1::Health::NewStub(channel_);
  EXPECT_TRUE(health->Check(&context, {}, &status).ok()) << "load balancers have none";
}

TEST_F(RouterGrpcTest, WhoIsGoneIsOfNoUseToAServer) {
  StartAndDial({FakeWorkerOptions(), FakeWorkerOptions()});
  const auto info = [this] {
    grpc::ClientContext context;
    v1::ServerInfo server;
    EXPECT_TRUE(control_->GetServerInfo(&context, {}, &server).ok());
    return server;
  };
  EXPECT_EQ(info().total_kv_blocks(), 2048);
  EXPECT_EQ(info().max_running_requests(), 128);
  EXPECT_EQ(info().kv_block_size(), 16);
  workers_[1].reset();
  EXPECT_TRUE(Eventually([&] { return info().total_kv_blocks() == 1024; }));
  EXPECT_TRUE(info().ready());
  EXPECT_EQ(info().max_running_requests(), 64);
  EXPECT_EQ(info().num_workers(), 2) << "it may come back";
  workers_[0].reset();
  EXPECT_TRUE(Eventually([&] { return !info().ready(); }));
}

TEST_F(RouterGrpcTest, ADrainSendsClientsElsewhereAndLosesNoCall) {
  Start();
  std::unique_ptr<RouterApp> leaving = std::move(router_);
  Start();
  const std::string both =
      absl::StrCat("ipv4:127.0.0.1:", leaving->grpc_port(), ",127.0.0.1:", router_->grpc_port());
  std::atomic<bool> ending{false};
  std::atomic<int> num_done{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      const auto stub =
          v1::Inference::NewStub(grpc::CreateChannel(both, grpc::InsecureChannelCredentials()));
      while (!ending) {
        grpc::ClientContext context;
        v1::GenerateResponse response;
        const grpc::Status status = stub->Generate(&context, Request(3), &response);
        EXPECT_TRUE(status.ok()) << status.error_message();
        ++num_done;
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return num_done > 50; }));
  leaving->BeginDrain();
  EXPECT_TRUE(Eventually([&] { return leaving->Drained(); }));
  leaving.reset();
  const int before = num_done;
  EXPECT_TRUE(Eventually([&] { return num_done > before + 50; }));
  ending = true;
  for (std::thread& client : clients) client.join();
}

// One HTTP/2 frame.
std::string Frame(char type, char flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift);
  frame += type;
  frame += flags;
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame + payload;
}

// Calls that send their headers and nothing else.
std::string HeadersOnly(const std::string& path, int count) {
  std::string block;
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{":method", "POST"},
                                                        {":scheme", "http"},
                                                        {":path", path},
                                                        {":authority", "x"},
                                                        {"te", "trailers"},
                                                        {"content-type", "application/grpc"}}) {
    block += '\0';
    block += static_cast<char>(name.size()) + name;
    block += static_cast<char>(value.size()) + value;
  }
  constexpr char kHeaders = 1, kSettings = 4, kEndHeaders = 4;
  std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");
  for (int i = 0; i < count; ++i) bytes += Frame(kHeaders, kEndHeaders, 2 * i + 1, block);
  return bytes;
}

TEST_F(RouterGrpcTest, AClientIsToldTheLimitsOfItsConnection) {
  StartAndDial({FakeWorkerOptions()});
  constexpr uint8_t kStreams = 3, kWindow = 4, kHeaderList = 6;
  EXPECT_TRUE(TellsSetting(router_->grpc_port(), kStreams, kMaxGrpcStreams));
  EXPECT_TRUE(TellsSetting(router_->grpc_port(), kWindow, kCallWindowBytes));
  EXPECT_TRUE(TellsSetting(router_->grpc_port(), kHeaderList, kMaxHeaderBytes));
}

TEST_F(RouterGrpcTest, CallsThatOnlySendTheirHeadersAreBoundedTogether) {
  StartAndDial({FakeWorkerOptions()});
  ASSERT_EQ(CodeOf(Request(1)), grpc::StatusCode::OK);  // Its connection is charged too.
  const double before = Metric("tandem_memory_held_bytes");
  std::vector<std::unique_ptr<RawHttp>> clients;
  constexpr int kRounds = 4, kCalls = 120;
  for (int i = 0; i < kRounds; ++i) {
    for (const char* path : {"/tandem.v1.Inference/Generate", "/tandem.v1.Inference/GenerateStream",
                             "/grpc.health.v1.Health/Check"}) {
      clients.push_back(std::make_unique<RawHttp>(router_->grpc_port()));
      clients.back()->Send(HeadersOnly(path, kCalls));
    }
  }
  const double most = 3 * kRounds * kCalls - 32 * 32;  // 32 MiB of 32 KiB each.
  EXPECT_TRUE(
      Eventually([&] { return Metric("tandem_memory_refusals_total{how=\"cut\"}") >= most; }));
  const double allowed = before + (32 << 20) + 3 * kRounds * kGateConnectionBytes;
  EXPECT_TRUE(Eventually([&] { return Metric("tandem_memory_held_bytes") <= allowed; }));
  EXPECT_EQ(CodeOf(Request(1)), grpc::StatusCode::OK);
  clients.clear();
  EXPECT_TRUE(Eventually([&] { return Metric("tandem_memory_held_bytes") <= before; }));
}

TEST_F(RouterGrpcTest, ACallThatOnlySentItsHeadersHoldsNoDrainUp) {
  StartAndDial({FakeWorkerOptions()});
  ASSERT_EQ(CodeOf(Request(1)), grpc::StatusCode::OK);
  const double before = Metric("tandem_memory_held_bytes");
  RawHttp client(router_->grpc_port());
  client.Send(HeadersOnly("/tandem.v1.Inference/GenerateStream", 3));
  EXPECT_TRUE(
      Eventually([&] { return Metric("tandem_memory_held_bytes") >= before + 3 * kCallBytes; }));
  router_->BeginDrain();
  EXPECT_TRUE(Eventually([&] { return router_->Drained(); }));
}

TEST_F(RouterGrpcTest, AClientThatDoesNotReadIsCutOffWithAllThatWaits) {
  Start({FakeWorkerOptions()});
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // Little passes unread.
  const auto channel =
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(router_->grpc_port()),
                                grpc::InsecureChannelCredentials(), arguments);
  grpc::ClientContext context;
  v1::GenerateRequest request = Request(1000);
  request.mutable_sampling()->set_num_sequences(100);
  const auto reader = v1::Inference::NewStub(channel)->GenerateStream(&context, request);
  EXPECT_TRUE(Eventually([&] { return Metric("tandem_slow_readers_total") == 1; }));
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_running() == 0; }));
  router_->BeginDrain();
  EXPECT_TRUE(Eventually([&] { return router_->Drained(); })) << "the call is still there";
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

}  // namespace
}  // namespace tandem
