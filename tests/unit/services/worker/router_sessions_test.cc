#include "services/worker/router_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "services/server/fleet_auth.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/support/engine_cases.h"
#include "tests/unit/services/worker/stream_server.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kIncarnation = 77;
constexpr std::chrono::seconds kLimit{60};  // Nobody waits for so long.

AttemptId Attempt(uint64_t counter) {
  return {.request = {.router_incarnation = 9, .counter = counter}, .attempt = 1};
}

// A router with its Session, which has been opened when this is made.
struct Router {
  explicit Router(const std::shared_ptr<grpc::Channel>& channel)
      : stub(proto::Worker::NewStub(channel)) {
    SetPatience(&context);
    stream = stub->Session(&context);
    EXPECT_EQ(Next().worker_incarnation(), kIncarnation);
  }
  ~Router() {
    context.TryCancel();
    if (!finished) stream->Finish();
  }
  void Send(const RouterCommand& command) {
    proto::ToWorker message;
    ToProto(command, &message);
    EXPECT_TRUE(stream->Write(message));
  }
  // The session has ended.
  grpc::StatusCode Finish() {
    finished = true;
    return stream->Finish().error_code();
  }
  proto::StepBatch Next() {
    proto::StepBatch batch;
    EXPECT_TRUE(stream->Read(&batch));
    return batch;
  }

  const std::unique_ptr<proto::Worker::Stub> stub;
  grpc::ClientContext context;
  bool finished = false;
  std::unique_ptr<grpc::ClientReaderWriter<proto::ToWorker, proto::StepBatch>> stream;
};

class RouterSessionsTest : public testing::Test {
 protected:
  explicit RouterSessionsTest(size_t max_commands = 1000) : parts_(max_commands) {}

  static StepBatch BatchOf(uint64_t counter, size_t num_events = 1) {
    StepBatch batch{.worker_incarnation = kIncarnation};
    batch.events.assign(num_events,
                        EndedEvent{.attempt = Attempt(counter), .status = absl::AbortedError("x")});
    return batch;
  }
  // More than flow control lets pass to who does not read.
  void PublishMuch(SessionId session) {
    for (int i = 0; i < 20; ++i) sessions_.Publish(session, BatchOf(1, 1000));
  }
  // Whether the wait ends before its limit.
  bool WaitEnds(const std::vector<SessionId>& sessions) {
    const auto begin = std::chrono::steady_clock::now();
    sessions_.WaitUntilWritten(sessions, kLimit);
    return std::chrono::steady_clock::now() - begin < kLimit;
  }

  StreamParts parts_;
  RouterSessions sessions_{kIncarnation, &parts_.calls, &parts_.prompts, &parts_.commands};
  StreamServer<proto::StepBatch> server_{kWorkerSessionMethod, &parts_,
                                         [this](auto* context) { return sessions_.Open(context); }};
};

TEST_F(RouterSessionsTest, EachRouterIsToldItsOwnAndAsksForItself) {
  Router first(server_.Dial());
  auto second = std::make_unique<Router>(server_.Dial());
  const std::vector<SessionId> ids = sessions_.ids();
  ASSERT_EQ(ids.size(), 2u);
  sessions_.Publish(ids[1], BatchOf(2));
  sessions_.Publish(ids[0], BatchOf(1));
  EXPECT_EQ(first.Next().events(0).ended().attempt().request().counter(), 1u);
  EXPECT_EQ(second->Next().events(0).ended().attempt().request().counter(), 2u);
  for (const auto& [router, id] : {std::pair(&first, ids[0]), std::pair(second.get(), ids[1])}) {
    router->Send(Cancel{.attempt = Attempt(id), .time_left_us = 5});
    const auto command = parts_.TakeOne<FromRouter>();
    EXPECT_EQ(command.session, id);
    EXPECT_EQ(std::get<Cancel>(command.message).attempt, Attempt(id));
  }
  second.reset();
  EXPECT_EQ(parts_.TakeOne<RouterLost>().session, ids[1]);
  EXPECT_TRUE(Eventually([&] { return sessions_.ids().size() == 1; }));
  EXPECT_THAT(sessions_.ids(), ElementsAre(ids[0]));
  sessions_.Publish(ids[1], BatchOf(2));  // Goes nowhere.
  sessions_.Publish(ids[0], BatchOf(3));
  EXPECT_EQ(first.Next().events(0).ended().attempt().request().counter(), 3u);
}

TEST_F(RouterSessionsTest, APromptIsChargedUntilTheEngineHasDoneWithIt) {
  Router router(server_.Dial());
  const int64_t before = parts_.budget.held_bytes();
  router.Send(MakeSubmit(1, RandomTokens(1000, 1), 5));
  {
    const auto command = parts_.TakeOne<FromRouter>();
    EXPECT_EQ(std::get<Submit>(command.message).spec.token_ids.size(), 1000u);
    EXPECT_EQ(parts_.prompts.held_bytes(), kPromptBytes + 1000 * kPromptTokenBytes);
    EXPECT_EQ(parts_.budget.held_bytes() - before, kPromptBytes + 1000 * kPromptTokenBytes);
  }
  EXPECT_EQ(parts_.prompts.held_bytes(), 0);
  EXPECT_EQ(parts_.budget.held_bytes(), before);
}

TEST_F(RouterSessionsTest, WhatIsWrongWithANamedAttemptRefusesItAlone) {
  Router router(server_.Dial());
  proto::ToWorker message;
  ToProto(RouterCommand(MakeSubmit(7, {1, 2}, 5)), &message);
  message.mutable_submit()->mutable_spec()->clear_choices();
  EXPECT_TRUE(router.stream->Write(message));
  const proto::StepBatch batch = router.Next();
  ASSERT_EQ(batch.events_size(), 1);
  EXPECT_EQ(batch.worker_incarnation(), kIncarnation);
  EXPECT_EQ(batch.events(0).refused().attempt().request().counter(), 7u);
  EXPECT_EQ(batch.events(0).refused().status().code(), 3);
  router.Send(Cancel{.attempt = Attempt(8), .time_left_us = 5});
  parts_.TakeOne<FromRouter>();
}

TEST_F(RouterSessionsTest, WhatNamesNoAttemptEndsItsSession) {
  for (const bool submit : {false, true}) {
    Router router(server_.Dial());
    // An end before its write is done would be a cancellation.
    EXPECT_TRUE(Eventually([this] { return sessions_.Flushed(); }));
    proto::ToWorker message;
    if (submit) {
      message.mutable_submit()->set_model("m");
    } else {
      message.mutable_cancel()->set_time_left_us(5);
    }
    EXPECT_TRUE(router.stream->Write(message));
    proto::StepBatch batch;
    EXPECT_FALSE(router.stream->Read(&batch));
    EXPECT_EQ(router.Finish(), grpc::StatusCode::INVALID_ARGUMENT);
    parts_.TakeOne<RouterLost>();
  }
}

class FullQueueTest : public RouterSessionsTest {
 protected:
  FullQueueTest() : RouterSessionsTest(/*max_commands=*/1) {}
};

TEST_F(FullQueueTest, RefusesPromptsAndTakesCancellations) {
  Router router(server_.Dial());
  router.Send(MakeSubmit(1, {1, 2}, 5));
  router.Send(MakeSubmit(2, {1, 2}, 5));
  const proto::StepBatch batch = router.Next();
  ASSERT_EQ(batch.events_size(), 1);
  const proto::RefusedEvent& refused = batch.events(0).refused();
  EXPECT_EQ(refused.attempt().request().counter(), 2u);
  EXPECT_EQ(refused.status().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(refused.status().message(), HasSubstr("queue of commands is full"));
  EXPECT_GT(refused.retry_after_us(), 0);
  router.Send(Cancel{.attempt = Attempt(1), .time_left_us = 5});
  EXPECT_TRUE(Eventually([&] { return parts_.commands.size() == 2; }));
  parts_.commands.Drain();
  EXPECT_EQ(parts_.prompts.held_bytes(), 0) << "of who was refused, too";
}

// A step waits for it.
TEST_F(RouterSessionsTest, WhatIsPublishedToWhoReadsIsSoonWritten) {
  Router router(server_.Dial());
  const std::vector<SessionId> ids = sessions_.ids();
  for (uint64_t i = 0; i < 100; ++i) {
    sessions_.Publish(ids[0], BatchOf(i));
    ASSERT_TRUE(WaitEnds(ids)) << i;
    EXPECT_TRUE(sessions_.Flushed());
    EXPECT_EQ(router.Next().events(0).ended().attempt().request().counter(), i);
  }
  EXPECT_TRUE(WaitEnds({ids[0] + 1})) << "there is none";
}

TEST_F(RouterSessionsTest, WhoDoesNotReadIsWaitedForOnceAndAgainWhenItHasCaughtUp) {
  Router late(server_.DialWithSmallWindow()), other(server_.Dial());
  const std::vector<SessionId> ids = sessions_.ids();
  PublishMuch(ids[0]);
  EXPECT_FALSE(sessions_.Flushed());
  sessions_.WaitUntilWritten(ids, std::chrono::microseconds(0));
  for (int i = 0; i < 2; ++i) {
    sessions_.Publish(ids[1], BatchOf(2));
    EXPECT_TRUE(WaitEnds(ids)) << "it is waited for at every step";
    other.Next();
  }
  for (int i = 0; i < 20; ++i) late.Next();
  EXPECT_TRUE(Eventually([&] { return sessions_.Flushed(); }));
  EXPECT_TRUE(WaitEnds(ids));
  PublishMuch(ids[0]);
  EXPECT_FALSE(sessions_.Flushed());
  auto waiting = std::async(std::launch::async, [&] { return WaitEnds(ids); });
  for (int i = 0; i < 20; ++i) late.Next();
  EXPECT_TRUE(waiting.get());
  EXPECT_TRUE(sessions_.Flushed()) << "it is never waited for again";
}

// Else a step would wait for a router that is gone.
TEST_F(RouterSessionsTest, AWaitEndsWithItsSession) {
  auto router = std::make_unique<Router>(server_.DialWithSmallWindow());
  const std::vector<SessionId> ids = sessions_.ids();
  PublishMuch(ids[0]);
  auto waiting = std::async(std::launch::async, [&] { return WaitEnds(ids); });
  router.reset();
  EXPECT_TRUE(waiting.get());
}

}  // namespace
}  // namespace tandem
