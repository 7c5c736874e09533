#include "services/worker/watch_hub.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "services/server/fleet_auth.h"
#include "services/server/limits.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/support/wire_cases.h"
#include "tests/unit/services/worker/stream_server.h"

namespace tandem {
namespace {

// A router's Watch, whose registration has come when this is made.
struct Watching {
  explicit Watching(const std::shared_ptr<grpc::Channel>& channel)
      : stub(proto::Worker::NewStub(channel)) {
    SetPatience(&context);
    proto::WatchRequest request;
    request.set_router("router");
    request.set_protocol_min(kProtocolMin);
    request.set_protocol_max(kProtocolMax);
    reader = stub->Watch(&context, request);
    EXPECT_EQ(Next().registration().worker().name(), "worker");
  }
  ~Watching() {
    context.TryCancel();
    reader->Finish();
  }
  proto::WatchEvent Next() {
    proto::WatchEvent event;
    EXPECT_TRUE(reader->Read(&event));
    return event;
  }

  const std::unique_ptr<proto::Worker::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<proto::WatchEvent>> reader;
};

class WatchHubTest : public testing::Test {
 protected:
  static WorkerRegistration Registration() {
    auto registration = std::get<WorkerRegistration>(WireUpdates()[0]);
    registration.worker.name = "worker";
    registration.terms = {.kv_class = "class", .transport = "grpc"};
    return registration;
  }
  static KvEvents Stored(uint64_t first, size_t count = 1) {
    return {.first_sequence = first, .stored = std::vector<BlockHash>(count, WireHash(1))};
  }

  StreamParts parts_;
  WatchHub hub_{Registration(), &parts_.calls, &parts_.commands};
  StreamServer<proto::WatchEvent> server_{kWatchMethod, &parts_,
                                          [this](auto* context) { return hub_.Open(context); }};
};

TEST_F(WatchHubTest, AWatchHearsOfBlocksFromItsOwnSnapshotOn) {
  Watching first(server_.Dial());
  const uint64_t first_id = parts_.TakeOne<WatchOpened>().watch;
  Watching second(server_.Dial());
  const uint64_t second_id = parts_.TakeOne<WatchOpened>().watch;
  EXPECT_NE(first_id, second_id);
  hub_.PublishEvents(Stored(1));  // Part of both snapshots.
  hub_.PublishSnapshot(first_id, {.first_sequence = 2, .snapshot = true});
  hub_.PublishEvents(Stored(2));
  hub_.PublishSnapshot(second_id, {.first_sequence = 3, .snapshot = true});
  hub_.PublishEvents(Stored(3));
  hub_.PublishEvents({.first_sequence = 4});  // Nothing has changed.
  hub_.PublishEvents({.first_sequence = 4, .removed = Stored(3).stored});
  for (const auto& [watch, from] : {std::pair(&first, 2u), std::pair(&second, 3u)}) {
    const proto::KvEvents snapshot = watch->Next().kv_events();
    EXPECT_TRUE(snapshot.snapshot());
    EXPECT_EQ(snapshot.first_sequence(), from);
    for (uint64_t sequence = from; sequence <= 3; ++sequence) {
      const proto::KvEvents events = watch->Next().kv_events();
      EXPECT_FALSE(events.snapshot());
      EXPECT_EQ(events.first_sequence(), sequence);
    }
    const proto::KvEvents removed = watch->Next().kv_events();
    EXPECT_EQ(removed.first_sequence(), 4u);
    EXPECT_FALSE(removed.removed().empty()) << "steps that change nothing say nothing";
  }
}

TEST_F(WatchHubTest, EveryWatchHearsHeartbeatsFromTheBeginning) {
  Watching first(server_.Dial()), second(server_.Dial());
  hub_.PublishHeartbeat({.load = {.running_sequences = 5}, .draining = true});
  for (Watching* const watch : {&first, &second}) {
    const proto::Heartbeat beat = watch->Next().heartbeat();
    EXPECT_EQ(beat.load().running_sequences(), 5);
    EXPECT_TRUE(beat.draining());
  }
}

// They would be told long after they were true.
TEST_F(WatchHubTest, HeartbeatsDoNotPileUpForWhoDoesNotRead) {
  constexpr int kBeats = 50'000;
  Watching watch(server_.DialWithSmallWindow());
  const uint64_t id = parts_.TakeOne<WatchOpened>().watch;
  for (int i = 0; i < kBeats; ++i) hub_.PublishHeartbeat(std::get<Heartbeat>(WireUpdates()[1]));
  EXPECT_FALSE(hub_.Flushed());
  hub_.PublishSnapshot(id, {.first_sequence = 1, .snapshot = true});
  int num_beats = 0;
  while (!testing::Test::HasFailure() && watch.Next().has_heartbeat()) ++num_beats;
  EXPECT_GE(num_beats, 16) << "as many wait for it";
  EXPECT_LT(num_beats, kBeats / 2) << "more than flow control lets pass";
  EXPECT_TRUE(Eventually([this] { return hub_.Flushed(); }));
}

TEST_F(WatchHubTest, ManyBlocksAreToldInPieces) {
  Watching watch(server_.Dial());
  const uint64_t id = parts_.TakeOne<WatchOpened>().watch;
  KvEvents snapshot = Stored(4, kHashesPerEvent + 1);
  snapshot.snapshot = true;
  hub_.PublishSnapshot(id, snapshot);
  EXPECT_EQ(watch.Next().kv_events().stored().size(), kHashesPerEvent * sizeof(BlockHash::bytes));
  EXPECT_EQ(watch.Next().kv_events().stored().size(), sizeof(BlockHash::bytes));
}

TEST_F(WatchHubTest, WhatWaitsForTheEngineIsChargedToItsRouter) {
  const int64_t idle = parts_.budget.held_bytes();
  {
    Watching watch(server_.Dial());
    const auto opened = parts_.TakeOne<WatchOpened>();
    ASSERT_NE(opened.charge, nullptr);
    EXPECT_GE(parts_.budget.held_bytes(),
              idle + kCallBytes + static_cast<int64_t>(sizeof(EngineCommand)));
  }
  hub_.CloseAll(absl::UnavailableError("over"));
  hub_.PublishHeartbeat({});  // To nobody.
}

TEST_F(WatchHubTest, AnEndIsSaidToEveryWatch) {
  Watching first(server_.Dial()), second(server_.Dial());
  hub_.CloseAll(absl::UnavailableError("the worker is leaving"));
  for (Watching* const watch : {&first, &second}) {
    proto::WatchEvent event;
    EXPECT_FALSE(watch->reader->Read(&event));
  }
}

}  // namespace
}  // namespace tandem
