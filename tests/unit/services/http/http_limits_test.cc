// Each limit on what HTTP clients send, hold and leave undone: what is within it passes, what is
// just past it does not.

#include "services/http/http_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "services/http/server_connection.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_http.h"
#include "tests/unit/services/http/http_server_fixture.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr char kChunkedHead[] = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
constexpr int64_t kIncludedBytes = 8 << 10;  // Charged with the connection anyway.

class HttpLimitsTest : public HttpServerTest {
 protected:
  int StatusOf(const std::string& bytes) {
    RawHttp client(server_->port());
    client.Send(bytes);
    return client.Read().status;
  }
  static std::string Head(const std::string& fields, const std::string& target = "/") {
    return "GET " + target + " HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n";
  }
  // What the strand was given before has been done.
  void Settle() {
    std::promise<void> done;
    handler_.held->Post([&] { done.set_value(); });
    done.get_future().wait();
  }
};

TEST_F(HttpLimitsTest, FieldsAndTargetMayBeSoManyAndNoMore) {
  const auto fields = [](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += "A: b\r\n";
    return text;
  };
  EXPECT_EQ(StatusOf(Head(fields(kMaxHeaderFields - 1))), 200) << "one is the Host";
  EXPECT_EQ(StatusOf(Head(fields(kMaxHeaderFields))), 431);
  EXPECT_EQ(StatusOf(Head("", "/" + std::string(kMaxTargetBytes - 1, 'a'))), 200);
  EXPECT_EQ(StatusOf(Head("", "/" + std::string(kMaxTargetBytes, 'a'))), 414);
}

TEST_F(HttpLimitsTest, AHeadAndAnUnfinishedLineMayBeSoLongAndNoLonger) {
  EXPECT_EQ(StatusOf(Head("A: " + std::string(kMaxHeaderBytes - 1000, 'a') + "\r\n")), 200);
  EXPECT_EQ(StatusOf(Head("A: " + std::string(kMaxHeaderBytes + 1000, 'a') + "\r\n")), 431);
  EXPECT_EQ(StatusOf(Head("A: " + std::string(kMaxHeaderBytes + 1000, 'a'))), 431);
  EXPECT_EQ(StatusOf(kChunkedHead + std::string("1;") + std::string(kMaxHeaderBytes + 1000, 'a')),
            431);
}

TEST_F(HttpLimitsTest, ABodyMayBeSoLongAndNoLonger) {
  const auto post = [](size_t bytes) {
    return "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n";
  };
  EXPECT_EQ(StatusOf(post(kMaxBodyBytes) + std::string(kMaxBodyBytes, 'b')), 200);
  EXPECT_EQ(StatusOf(post(kMaxBodyBytes + 1)), 413) << "before any of it has come";
  EXPECT_EQ(StatusOf(kChunkedHead + std::string("400001\r\n") + std::string(1000, 'b')), 413);
}

TEST_F(HttpLimitsTest, ACodingThatAnOlderReaderDoesNotKnowIsRefused) {
  EXPECT_EQ(StatusOf("GET / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                     "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"),
            400);
}

TEST_F(HttpLimitsTest, AConnectionIsChargedItsShareAndWhatItsBuffersHoldBeyondTheIncluded) {
  RawHttp client(server_->port());
  const std::string body(11'000, 'b');
  client.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + body);
  const int64_t least = kHttpConnectionBytes + std::ssize(body) - kIncludedBytes;
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() >= least; }));
  EXPECT_LT(budget_.held_bytes(), least + 1000);
}

TEST_F(HttpLimitsTest, AChunkedBodyIsChargedTwice) {
  RawHttp client(server_->port());
  const std::string body(100'000, 'b');
  client.Send(std::string(kChunkedHead) + "30000\r\n" + body);
  const int64_t least = kHttpConnectionBytes + 2 * std::ssize(body) - kIncludedBytes;
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() >= least; }));
  EXPECT_LT(budget_.held_bytes(), least + 2000);
}

TEST_F(HttpLimitsTest, ALargeBudgetIsUsedUpByTheLastConnectionThatMayBeOpen) {
  constexpr int64_t kShare = 4 * kHttpConnectionBytes;
  MemoryBudget budget(kMaxConnections * kShare);
  const auto server =
      *HttpServer::Create({.address = {.ip = "127.0.0.1"}, .budget = &budget}, &handler_);
  RawHttp client(server->port());
  EXPECT_EQ(client.Exchange("/other").status, 200);
  EXPECT_EQ(budget.held_bytes(), kShare);
}

TEST_F(HttpLimitsTest, WhatIsSentAheadIsChargedUntilItIsTooMuch) {
  constexpr size_t kAhead = 60'000, kMore = 20'000;
  static_assert(kAhead < kMaxReadAheadBytes && kAhead + kMore > kMaxReadAheadBytes);
  RawHttp client(server_->port());
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  client.Send(std::string(kAhead, 'x'));
  const int64_t charged = kHttpConnectionBytes + int64_t{kAhead} - kIncludedBytes;
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() >= charged; }));
  client.Send(std::string(kMore, 'x'));
  EXPECT_TRUE(Eventually([&] {
    handler_.held->Write(".");  // What it holds is looked at again.
    Settle();
    return budget_.held_bytes() < kHttpConnectionBytes + int64_t{kMore};
  })) << "it is dropped";
  handler_.held->EndStream();
  handler_.held.reset();
  EXPECT_TRUE(client.Read().complete);
  EXPECT_EQ(client.ReadToEnd(), 0u) << "the last answer";
}

TEST_F(HttpLimitsTest, OnlySoMuchOfAStreamWaitsForItsReader) {
  const std::string piece(8 << 10, 'p');  // Small, so that little of it is on its way at a time.
  RawHttp client(server_->port(), /*receive_buffer_bytes=*/64 << 10);
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  std::atomic<bool> left{false};
  handler_.held->Post([&] { handler_.held->OnLeft([&] { left = true; }); });
  int64_t most = 0;
  for (int i = 0; i < 4000 && !left; ++i) {
    handler_.held->Write(piece);
    Settle();
    most = std::max(most, budget_.held_bytes());
  }
  EXPECT_TRUE(left);
  EXPECT_EQ(num_slow_readers_, 1);
  EXPECT_GT(most, int64_t{kMaxUnsentBytes});
  EXPECT_LT(most, int64_t{kMaxUnsentBytes} * 3 / 2);
  handler_.held.reset();
}

// One writer at a time: bytes keep their order, and an answer ends once.
TEST_F(HttpLimitsTest, WhatIsWrittenWhileTheReaderStandsStillComesInOrder) {
  constexpr int kLater = 20;  // Pieces, after the first that has to wait.
  RawHttp client(server_->port(), /*receive_buffer_bytes=*/64 << 10);
  for (int round = 0; round < 3; ++round) {
    client.SendRequest("/held");
    ASSERT_TRUE(client.ReadUntil("begun"));
    std::string body = "begun";
    for (int later = 0; later < kLater;) {
      const std::string piece(8 << 10, static_cast<char>('a' + body.size() % 23));
      handler_.held->Write(piece);
      body += piece;
      Settle();
      Settle();  // A piece is given to the kernel by what its coming posts.
      later += budget_.held_bytes() > kHttpConnectionBytes ? 1 : 0;
    }
    handler_.held->EndStream();
    handler_.held.reset();
    const RawAnswer answer = client.Read();
    EXPECT_TRUE(answer.complete);
    EXPECT_TRUE(answer.body == body) << answer.body.size() << " of " << body.size() << " bytes";
  }
  EXPECT_EQ(num_slow_readers_, 0);
}

TEST_F(HttpLimitsTest, AnAnswerForWhichThereIsNoRoomIsCutOff) {
  MemoryBudget budget(1 << 20);
  const auto server =
      *HttpServer::Create({.address = {.ip = "127.0.0.1"}, .budget = &budget}, &handler_);
  EXPECT_FALSE(RawHttp(server->port()).Exchange("/large").complete);
  EXPECT_FALSE(RawHttp(server->port()).Exchange("/burst").complete);
  EXPECT_EQ(budget.num_refused(), 2);
  EXPECT_EQ(RawHttp(server->port()).Exchange("/other").status, 200);
}

TEST_F(HttpLimitsTest, OfThoseWhoFindNoRoomOnlySoManyAreToldSo) {
  MemoryBudget budget(1 << 20);
  MemoryBudget::Holding others(&budget, "others");
  ASSERT_TRUE(others.Set(budget.limit_bytes()).ok());
  const auto server =
      *HttpServer::Create({.address = {.ip = "127.0.0.1"}, .budget = &budget}, &handler_);
  std::vector<std::unique_ptr<RawHttp>> clients;
  for (int i = 0; i < kMaxToldAtOnce + 8; ++i) {
    clients.push_back(std::make_unique<RawHttp>(server->port()));
  }
  // The latter first: when they see their end, all have been looked at.
  for (size_t i = kMaxToldAtOnce; i < clients.size(); ++i) {
    EXPECT_EQ(clients[i]->ReadToEnd(), 0u) << i;
  }
  for (size_t i = 0; i < kMaxToldAtOnce; ++i) {
    const RawAnswer answer = clients[i]->Exchange("/other");
    EXPECT_EQ(answer.status, 503) << i;
    EXPECT_THAT(answer.body, HasSubstr("no room"));
  }
}

TEST_F(HttpLimitsTest, OnceTheyHaveGoneOthersAreTold) {
  MemoryBudget budget(1 << 20);
  MemoryBudget::Holding others(&budget, "others");
  ASSERT_TRUE(others.Set(budget.limit_bytes()).ok());
  const auto server =
      *HttpServer::Create({.address = {.ip = "127.0.0.1"}, .budget = &budget}, &handler_);
  // Each as soon as there is a place among those who are told.
  for (int i = 0; i < 2 * kMaxToldAtOnce; ++i) {
    ASSERT_TRUE(Eventually([&] {
      return RawHttp(server->port()).Exchange("/other").status == 503;
    })) << i;
  }
}

// Who is without a request, then who has sent a part of one; nobody whose answer is being made.
TEST_F(HttpLimitsTest, WhoIsKeptGivesWayFirstAndWhoIsAnsweredNever) {
  MemoryBudget budget(16 * kHttpConnectionBytes);
  const auto server = *HttpServer::Create(
      {.address = {.ip = "127.0.0.1"}, .budget = &budget, .num_threads = 1}, &handler_);
  RawHttp answered(server->port()), busy(server->port()), kept(server->port());
  answered.SendRequest("/held");
  ASSERT_TRUE(answered.ReadUntil("begun"));
  busy.Send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n");
  EXPECT_EQ(busy.Read().status, 100);
  EXPECT_EQ(kept.Exchange("/other").status, 200);
  Settle();  // The one thread is done with all of that.
  MemoryBudget::Holding rest(&budget, "rest"), asking(&budget, "asking");
  const int64_t share = budget.held_bytes() / 3;
  ASSERT_TRUE(rest.Set(budget.limit_bytes() - budget.held_bytes()).ok());
  EXPECT_TRUE(Eventually([&] { return asking.Set(share).ok(); }));
  EXPECT_EQ(kept.ReadToEnd(), 0u);
  EXPECT_EQ(budget.num_cut(), 1);
  EXPECT_TRUE(Eventually([&] { return asking.Set(2 * share).ok(); }));
  EXPECT_EQ(busy.Read().status, 503);
  EXPECT_FALSE(asking.Set(3 * share).ok());
  handler_.held->EndStream();
  handler_.held.reset();
  EXPECT_TRUE(answered.Read().complete);
}

// Clients are told apart by their addresses.
TEST_F(HttpLimitsTest, WhoHasMostConnectionsGivesWayBeforeWhoHasTheOldest) {
  MemoryBudget budget(16 * kHttpConnectionBytes);
  const auto server = *HttpServer::Create(
      {.address = {.ip = "127.0.0.1"}, .budget = &budget, .num_threads = 1}, &handler_);
  RawHttp oldest(server->port());
  EXPECT_EQ(oldest.Exchange("/other").status, 200);
  std::vector<std::unique_ptr<RawHttp>> many;
  for (int i = 0; i < 20; ++i) {
    many.push_back(std::make_unique<RawHttp>(server->port(), 0, "127.0.0.2"));
    EXPECT_EQ(many.back()->Exchange("/other").status, 200) << i;
  }
  EXPECT_EQ(oldest.Exchange("/other").status, 200);
  EXPECT_EQ(many.front()->ReadToEnd(), 0u);
}

// It waits for more of its body, and for nothing of ours. A part of a head is no request.
TEST_F(HttpLimitsTest, WhoHasSentAHeadIsNotWithoutARequest) {
  MemoryBudget budget(16 * kHttpConnectionBytes);
  const auto server = *HttpServer::Create(
      {.address = {.ip = "127.0.0.1"}, .budget = &budget, .num_threads = 1}, &handler_);
  RawHttp answered(server->port()), busy(server->port()), part(server->port()),
      kept(server->port());
  answered.SendRequest("/held");
  ASSERT_TRUE(answered.ReadUntil("begun"));
  busy.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n");
  part.Send("POST / HTTP/1.1\r\nHost: x\r\nCont");
  ASSERT_TRUE(Eventually([&] { return busy.AllReceived() && part.AllReceived(); }));
  EXPECT_EQ(kept.Exchange("/other").status, 200);
  Settle();  // The one thread has seen all, and waits for them.
  MemoryBudget::Holding rest(&budget, "rest"), asking(&budget, "asking");
  const int64_t share = budget.held_bytes() / 4;
  ASSERT_TRUE(rest.Set(budget.limit_bytes() - budget.held_bytes()).ok());
  EXPECT_TRUE(Eventually([&] { return asking.Set(2 * share).ok(); }));
  EXPECT_EQ(part.Read().status, 503);
  EXPECT_EQ(kept.ReadToEnd(), 0u);
  busy.Send("some more");
  EXPECT_EQ(busy.Read().status, 200);
  handler_.held.reset();
}

TEST_F(HttpLimitsTest, WhoDoesNotReadGivesWay) {
  RawHttp client(server_->port(), /*receive_buffer_bytes=*/64 << 10);
  client.SendRequest("/large");
  constexpr int64_t kAnswer = TestHandler::kBurstBytes;
  ASSERT_TRUE(Eventually([&] { return budget_.held_bytes() >= kAnswer; }));
  MemoryBudget::Holding rest(&budget_, "rest"), asking(&budget_, "asking");
  ASSERT_TRUE(rest.Set(kBudgetBytes - budget_.held_bytes()).ok());
  EXPECT_TRUE(Eventually([&] { return asking.Set(kAnswer / 2).ok(); }));
  EXPECT_LT(client.ReadToEnd(), TestHandler::kBurstBytes);
  EXPECT_EQ(num_slow_readers_, 1);
}

TEST_F(HttpLimitsTest, ARequestIsChargedForAsLongAsItsHandlerHasIt) {
  const std::string body(100'000, 'b');
  RawHttp client(server_->port());
  client.SendRequest("/silent", body);
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  EXPECT_EQ(handler_.held_request.body, body);
  EXPECT_EQ(budget_.held_bytes(), kHttpConnectionBytes + std::ssize(body));
  handler_.held_request = {};
  EXPECT_EQ(budget_.held_bytes(), kHttpConnectionBytes);
  handler_.held->Send(200, "text/plain", "done");
  handler_.held.reset();
  EXPECT_EQ(client.Read().body, "done");
}

TEST_F(HttpLimitsTest, OfThoseThatAreCutOnlySoManyAreToldSo) {
  constexpr size_t kRoom = 64, kCut = kMaxToldAtOnce + 8;
  MemoryBudget budget(kRoom * kHttpConnectionBytes);
  const auto server =
      *HttpServer::Create({.address = {.ip = "127.0.0.1"}, .budget = &budget}, &handler_);
  std::vector<std::unique_ptr<RawHttp>> clients;
  const auto open = [&] { clients.push_back(std::make_unique<RawHttp>(server->port())); };
  while (clients.size() < kRoom) open();
  int told = 0;
  for (size_t oldest = 0; oldest < kCut; ++oldest) {
    open();
    const int status = clients[oldest]->Read().status;
    EXPECT_TRUE(status == 503 || status == 0) << status;
    told += status == 503 ? 1 : 0;
  }
  EXPECT_EQ(budget.num_cut(), kCut);
  EXPECT_EQ(told, kMaxToldAtOnce);
}

using std::chrono_literals::operator""ms;

TEST_F(HttpTimesTest, AHeadThatDoesNotComeEndsTheConnection) {
  RawHttp client(Serve([](HttpTimes* times) { times->header = 20ms; }));
  client.Send("GET / HTTP/1.1\r\n");
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpTimesTest, ABodyThatDoesNotComeEndsTheConnection) {
  RawHttp client(Serve([](HttpTimes* times) { times->body = 20ms; }));
  client.Send(kHalfBody);
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpTimesTest, AConnectionThatAsksNoMoreIsClosed) {
  RawHttp client(Serve([](HttpTimes* times) { times->idle = 20ms; }));
  EXPECT_EQ(client.Exchange("/other").status, 200);
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpTimesTest, WhoWasRefusedAndStaysIsClosed) {
  RawHttp client(Serve([](HttpTimes* times) { times->discard = 20ms; }));
  client.Send("nonsense\r\n\r\n");
  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpTimesTest, AReaderThatStandsStillLosesItsAnswer) {
  RawHttp client(Serve([](HttpTimes* times) { times->write = 20ms; }), kSmallBuffer);
  client.SendRequest("/large");
  EXPECT_TRUE(OneIsClosed());
  EXPECT_LT(client.ReadToEnd(), TestHandler::kBurstBytes);
}

// Others, who come later and stand still, show that the time is over.
TEST_F(HttpTimesTest, AnAnswerMayComeLaterThanABody) {
  const int port = Serve([](HttpTimes* times) { times->body = 20ms; });
  RawHttp client(port), other(port);
  client.SendRequest("/silent");
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  other.Send(kHalfBody);
  EXPECT_TRUE(OneIsClosed());
  handler_.held->Send(200, "text/plain", "late");
  handler_.held.reset();
  EXPECT_EQ(client.Read().body, "late");
}

// The kernel takes no more from the server: nobody reads what fills it up.
void Fill(int server_side) {
  const std::string bytes(4 << 10, 'x');
  for (const size_t size : {bytes.size(), size_t{1}}) {
    while (send(server_side, bytes.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
  }
}

// Its "100 Continue" has waited for the reader since before the request was complete.
TEST_F(HttpTimesTest, AReaderThatStandsStillSinceBeforeItsAnswerLosesIt) {
  RawHttp client(Serve([](HttpTimes* times) { times->write = 20ms; }), kSmallBuffer);
  EXPECT_EQ(client.Exchange("/other").status, 200);
  const int server_side = client.ServerSide();
  ASSERT_GE(server_side, 0);
  const int seen = handler_.headers_seen;
  const std::string head =
      "POST /silent HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
  // Whatever a client sends also acknowledges what it has: the last of these bytes frees nothing.
  for (const char byte : head) {
    Fill(server_side);
    client.Send({&byte, 1});
    ASSERT_TRUE(Eventually([&] { return client.AllReceived(); }));
  }
  ASSERT_TRUE(Eventually([&] { return handler_.headers_seen > seen; }));
  client.Send("body");
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  EXPECT_TRUE(OneIsClosed());
  handler_.held.reset();
}

TEST_F(HttpTimesTest, WhoComesWhileNoDescriptorIsLeftIsTakenInOnceThereIs) {
  const int port = Serve([](HttpTimes*) {}, /*num_threads=*/1);
  RawHttp known(port);
  EXPECT_EQ(known.Exchange("/other").status, 200);
  const int next = dup(STDERR_FILENO);  // The lowest that is free.
  close(next);
  rlimit all{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &all), 0);
  const rlimit one_more{.rlim_cur = static_cast<rlim_t>(next) + 1, .rlim_max = all.rlim_max};
  setrlimit(RLIMIT_NOFILE, &one_more);
  RawHttp late(port);
  // The thread looks at what has come before, and has nothing for it.
  for (int i = 0; i < 2; ++i) EXPECT_EQ(known.Exchange("/other").status, 200);
  setrlimit(RLIMIT_NOFILE, &all);
  EXPECT_EQ(late.Exchange("/other").status, 200);
}

TEST_F(HttpTimesTest, BetweenItsPiecesAStreamMayRestLongerThanAWrite) {
  const int port = Serve([](HttpTimes* times) { times->write = 1000ms; });
  RawHttp client(port, kSmallBuffer), other(port, kSmallBuffer);
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  // A piece that has to wait for its reader.
  handler_.held->Write(std::string(TestHandler::kBurstBytes, 'p') + "over");
  ASSERT_TRUE(client.ReadUntil("over"));
  other.SendRequest("/large");
  EXPECT_TRUE(OneIsClosed());
  handler_.held->EndStream();
  handler_.held.reset();
  EXPECT_TRUE(client.Read().complete);
}

}  // namespace
}  // namespace tandem
