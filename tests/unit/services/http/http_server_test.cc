#include "services/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "services/http/http_limits.h"
#include "services/http/server_connection.h"
#include "services/server/listen_socket.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/growth.h"
#include "tests/support/raw_http.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/http/http_server_fixture.h"

namespace tandem {
namespace {

TEST_F(HttpServerTest, WhoIsRefusedForTheHeaderIsToldBeforeTheBody) {
  const std::string header = "POST /refused HTTP/1.1\r\nHost: localhost\r\n";
  for (const char* const more :
       {"Content-Length: 1000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n",
        "Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"}) {
    RawHttp client(server_->port());
    client.Send(header + more);
    const RawAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 401) << more;
    EXPECT_EQ(answer.body, answer.headers.at("x-request-id") + ", body of 0") << more;
    EXPECT_EQ(answer.headers.at("connection"), "close") << more;
  }
  RawHttp without_body(server_->port());
  without_body.Send(header + "Content-Length: 0\r\n\r\n" + header + "Content-Length: 0\r\n\r\n");
  EXPECT_EQ(without_body.Read().status, 401);
  EXPECT_EQ(without_body.Read().status, 401) << "the connection goes on where all was read";
  RawHttp head(server_->port());
  head.Send("HEAD /refused HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n");
  EXPECT_FALSE(head.ReadUntil("body of")) << "an answer to HEAD has none";
  RawHttp good(server_->port());
  EXPECT_EQ(good.Exchange("/refused", "a body", "x-good: yes\r\n").status, 200);
}

TEST_F(HttpServerTest, ABurstIsNoSlowReader) {
  RawHttp client(server_->port());
  const RawAnswer answer = client.Exchange("/burst");
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.body, std::string(TestHandler::kBurstBytes, 'b'));
  EXPECT_EQ(num_slow_readers_, 0);
  EXPECT_EQ(client.Exchange("/other").status, 200) << "the connection goes on";
}

TEST_F(HttpServerTest, EveryAnswerNamesItsRequest) {
  const RawAnswer own = RawHttp(server_->port()).Exchange("/", "", "X-Request-Id: mine\r\n");
  EXPECT_EQ(own.body, "mine");
  EXPECT_EQ(own.headers.at("x-request-id"), "mine");
  const RawAnswer fresh =
      RawHttp(server_->port()).Exchange("/", "", "X-Request-Id: not printable\x01\r\n");
  EXPECT_EQ(fresh.headers.at("x-request-id").size(), 32u);
  const std::string longest(kMaxRequestIdBytes, 'i');
  EXPECT_EQ(RawHttp(server_->port()).Exchange("/", "", "X-Request-Id: " + longest + "\r\n").body,
            longest);
  EXPECT_EQ(
      RawHttp(server_->port()).Exchange("/", "", "X-Request-Id: " + longest + "i\r\n").body.size(),
      32u)
      << "logs repeat it";
  EXPECT_EQ(RawHttp(server_->port()).Exchange("/", "", "X-Request-Id: two words\r\n").body.size(),
            32u);
  EXPECT_NE(RawHttp(server_->port()).Exchange("/").body, fresh.body) << "whoever guesses it";
  // Refused before any handler.
  RawHttp large(server_->port());
  large.Send("POST / HTTP/1.1\r\nHost: x\r\nX-Request-Id: big\r\nContent-Length: 99999999\r\n\r\n");
  const RawAnswer refused = large.Read();
  EXPECT_EQ(refused.status, 413);
  EXPECT_EQ(refused.headers.at("x-request-id"), "big");
  EXPECT_EQ(RawHttp(server_->port())
                .Exchange("/" + std::string(3000, 'a'), "", "X-Request-Id: far\r\n")
                .headers.at("x-request-id"),
            "far");
  RawHttp nonsense(server_->port());
  nonsense.Send("NONSENSE\r\n\r\n");
  EXPECT_EQ(nonsense.Read().headers.at("x-request-id").size(), 32u);
}

// A client takes whatever follows the head for the next answer.
TEST_F(HttpServerTest, AnAnswerToHeadHasNoBodyThoughItIsAStream) {
  RawHttp client(server_->port());
  client.Send("HEAD /burst HTTP/1.1\r\nHost: localhost\r\n\r\n");
  client.SendRequest("/");
  EXPECT_TRUE(client.ReadUntil("chunked\r\n\r\nHTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, AStreamToAClientThatKnowsNoChunksEndsWithItsConnection) {
  RawHttp old(server_->port());
  old.Send("GET /held HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  ASSERT_TRUE(old.ReadUntil("\r\n\r\nbegun"));
  EXPECT_TRUE(old.ReadUntil("Connection: close\r\n"));
  handler_.held->Write(" and ended");
  handler_.held->EndStream();
  handler_.held.reset();
  EXPECT_TRUE(old.ReadUntil("begun and ended"));
  old.ReadToEnd();
}

TEST_F(HttpServerTest, AClientThatIsLostIsNoticedByTheKernel) {
  RawHttp client(server_->port());
  EXPECT_EQ(client.Exchange("/").status, 200);
  for (const auto& [level, name, want] : std::vector<std::tuple<int, int, int>>{
           {SOL_SOCKET, SO_KEEPALIVE, 1},
           {IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveTime.count()},
           {IPPROTO_TCP, TCP_USER_TIMEOUT, std::chrono::milliseconds(kWriteTimeout).count()},
           {IPPROTO_TCP, TCP_NODELAY, 1}}) {
    int value = 0;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(client.ServerSide(), level, name, &value, &size), 0);
    EXPECT_EQ(value, want) << name;
  }
}

TEST_F(HttpServerTest, AConnectionThatIsKeptIsLikeANewOne) {
  RawHttp client(server_->port());
  EXPECT_EQ(client.Exchange("/burst").status, 200);
  client.Send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send("body");
  EXPECT_EQ(client.Read().status, 200);
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n");
  EXPECT_EQ(client.Read().status, 400) << "each head is looked at";
}

TEST_F(HttpServerTest, AQueryIsNoPartOfThePath) {
  RawHttp client(server_->port());
  EXPECT_EQ(client.Exchange("/refused?of=/other").status, 401);
}

TEST_F(HttpServerTest, WhoHasAnsweredAnswersNoOtherRequest) {
  RawHttp client(server_->port());
  client.SendRequest("/silent");
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  const std::shared_ptr<HttpExchange> first = std::move(handler_.held);
  first->Post([first] {
    first->Send(200, "text/plain", "first");
    first->Send(200, "text/plain", "first again");
  });
  EXPECT_EQ(client.Read().body, "first");
  handler_.silent = false;
  client.SendRequest("/silent");
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  first->Send(200, "text/plain", "late");
  handler_.held->Send(200, "text/plain", "second");
  handler_.held.reset();
  EXPECT_EQ(client.Read().body, "second");
  EXPECT_EQ(client.Exchange("/", "", "X-Request-Id: third\r\n").body, "third");
}

// An empty chunk is the last one of a stream.
TEST_F(HttpServerTest, WhoWritesNothingEndsNothing) {
  RawHttp client(server_->port());
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  handler_.held->Write("");
  handler_.held->Write(" and ended");
  handler_.held->EndStream();
  handler_.held.reset();
  EXPECT_EQ(client.Read().body, "begun and ended");
  EXPECT_EQ(client.Exchange("/").status, 200);
}

TEST_F(HttpTimesTest, WhoAsksTooLateHearsAtOnceThatTheClientHasLeft) {
  const int port = Serve([](HttpTimes*) {});
  {
    RawHttp client(port);
    client.SendRequest("/silent");
    ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  }
  ASSERT_TRUE(OneIsClosed());
  const std::shared_ptr<HttpExchange> held = std::move(handler_.held);
  std::promise<void> left;
  held->Post([held, &left] { held->OnLeft([&left] { left.set_value(); }); });
  EXPECT_EQ(left.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
}

TEST_F(HttpTimesTest, WhoHasTheWholeAnswerDoesNotLeaveIt) {
  const int port = Serve([](HttpTimes*) {});
  std::atomic<bool> left{false};
  {
    RawHttp client(port);
    client.SendRequest("/held");
    ASSERT_TRUE(client.ReadUntil("begun"));
    const std::shared_ptr<HttpExchange> held = std::move(handler_.held);
    held->Post([held, &left] { held->OnLeft([&left] { left = true; }); });
    held->EndStream();
    EXPECT_TRUE(client.Read().complete);
  }
  ASSERT_TRUE(OneIsClosed());
  EXPECT_FALSE(left);
}

TEST_F(HttpTimesTest, NothingIsKeptOfConnectionsThatHaveEnded) {
  const int port = Serve([](HttpTimes*) {});
  const int64_t more = Growth([&](uint64_t number) {
    EXPECT_EQ(RawHttp(port).Exchange("/other").status, 200);
    EXPECT_TRUE(AreClosed(static_cast<int>(number)));
  });
  EXPECT_LT(more, 100 * static_cast<int64_t>(sizeof(ServerConnection))) << "200 have come and gone";
}

TEST_F(HttpServerTest, WhereThereIsTlsNobodyIsServedWithoutItAndItIsCharged) {
  const TempFolder folder;
  const TestCertificate shown = TestAuthority().Issue("localhost");
  const auto identity = *TlsIdentity::Open({.certificate = folder.Write("certificate", shown.pem),
                                            .key = folder.Write("key", shown.key)});
  const auto server = *HttpServer::Create(
      {.address = {.ip = "127.0.0.1"}, .tls = {.identity = identity.get()}, .budget = &budget_},
      &handler_);
  RawHttp client(server->port());
  constexpr int64_t kCharged = kHttpConnectionBytes + kTlsConnectionBytes;
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() == kCharged; }));
  EXPECT_EQ(client.Exchange("/other").status, 0);
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() == 0; })) << "it is closed";
}

TEST_F(HttpServerTest, WhatWasWrittenBeforeTheStopArrives) {
  RawHttp client(server_->port());
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  handler_.held->Write(" and ended");
  handler_.held->EndStream();
  server_->Stop(std::chrono::steady_clock::now() + kFlushTimeout);
  const RawAnswer answer = client.Read();
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.body, "begun and ended");
  handler_.held.reset();
}

TEST_F(HttpServerTest, AStopEndsWithTheLastConnection) {
  RawHttp client(server_->port());
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  const std::future<void> stopped = std::async(std::launch::async, [this] {
    server_->Stop(std::chrono::steady_clock::now() + std::chrono::minutes(2));
  });
  const std::string address = "127.0.0.1:" + std::to_string(server_->port());
  ASSERT_TRUE(Eventually([&] { return ListenSocket::Open(address).ok(); })) << "it still listens";
  handler_.held->EndStream();
  handler_.held.reset();
  client.ReadToEnd();
  EXPECT_EQ(stopped.wait_for(std::chrono::minutes(1)), std::future_status::ready);
}

TEST_F(HttpServerTest, WhoWaitsForAnAnswerAtTheStopIsClosed) {
  RawHttp client(server_->port());
  client.SendRequest("/silent");
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  bool left = false;
  std::promise<void> set;
  handler_.held->Post([&] {
    handler_.held->OnLeft([&] { left = true; });
    set.set_value();
  });
  set.get_future().wait();
  handler_.held.reset();
  server_->Stop(std::chrono::steady_clock::now());
  EXPECT_TRUE(left);
  EXPECT_EQ(client.ReadToEnd(), 0u);
}

std::string Chunk(size_t extension_bytes, size_t body_bytes) {
  std::ostringstream size;
  size << std::hex << body_bytes;
  return size.str() + ";" + std::string(extension_bytes, 'a') + "\r\n" +
         std::string(body_bytes, 'b') + "\r\n";
}

constexpr char kChunkedHead[] = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

// The rest of the connection is not read: it may be meant as something else.
TEST_F(HttpServerTest, WhatOthersWouldReadAsAnotherRequestIsRefused) {
  const std::string next = "\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const auto& [fields, status] : std::vector<std::pair<std::string, int>>{
           {"Host: x\r\nTransfer-Encoding: xchunked\r\n", 501},
           {"Host: x\r\nTransfer-Encoding: identity\r\n", 501},
           {"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", 501},
           {"Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400},
           {"Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 400},
           {"Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n", 400},
           {"Host: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n", 400},
           {"Host: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n", 400},
           {"Host: x\r\nHost: y\r\n", 400},
           {"", 400},
       }) {
    SCOPED_TRACE(fields);
    RawHttp client(server_->port());
    client.Send("GET / HTTP/1.1\r\n" + fields + next);
    EXPECT_EQ(client.Read().status, status);
    EXPECT_FALSE(client.ReadUntil("HTTP/1.1")) << "something else was answered";
  }
  RawHttp old(server_->port());
  old.Send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().status, 200);
}

TEST_F(HttpServerTest, ALineEndInAChunkExtensionIsRefused) {
  for (const std::string value : {"\"\n\"", "\"\r\"", "\"\x7f\""}) {
    SCOPED_TRACE(testing::PrintToString(value));
    RawHttp client(server_->port());
    client.Send(std::string(kChunkedHead) + "1;a=" + value + "\r\nx\r\n0\r\n\r\n");
    EXPECT_EQ(client.Read().status, 400);
  }
  RawHttp tabs(server_->port());
  tabs.Send(std::string(kChunkedHead) + "1;a=\"\t\"\r\nx\r\n0\r\n\r\n");
  EXPECT_EQ(tabs.Read().status, 200);
}

TEST_F(HttpServerTest, AChunkExtensionWithoutAnEndIsRefused) {
  RawHttp client(server_->port());
  client.Send(std::string(kChunkedHead) + "1;");
  const std::string piece(1 << 20, 'a');
  for (int i = 0; i < 64; ++i) client.Send(piece);
  EXPECT_LT(budget_.held_bytes(), 1 << 20);
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 431);
  EXPECT_THAT(answer.body, testing::HasSubstr("16384"));
}

TEST_F(HttpServerTest, ManyChunkExtensionsAreRefusedTogether) {
  RawHttp client(server_->port());
  client.Send(kChunkedHead);
  for (int i = 0; i < 8; ++i) client.Send(Chunk(10'000, 1));
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 431);
  EXPECT_THAT(answer.body, testing::HasSubstr("65536"));
  RawHttp modest(server_->port());
  for (int i = 0; i < 3; ++i) {  // Each request has its own.
    modest.Send(kChunkedHead + Chunk(30'000, 1) + Chunk(100, 70'000) + Chunk(100, 0));
    EXPECT_EQ(modest.Read().status, 200);
  }
}

TEST_F(HttpServerTest, TrailersAreLimitedLikeHeaders) {
  RawHttp client(server_->port());
  client.Send(kChunkedHead + std::string("1\r\nx\r\n0\r\n"));
  for (int i = 0; i < 20; ++i) client.Send("T: " + std::string(1000, 't') + "\r\n");
  EXPECT_EQ(client.Read().status, 431);
  RawHttp modest(server_->port());
  modest.Send(kChunkedHead + std::string("1\r\nx\r\n0\r\nT: t\r\n\r\n"));
  EXPECT_EQ(modest.Read().status, 200);
}

// A request of a 4 MiB body, but for its last byte.
std::string AllButOneByte() {
  constexpr size_t kBytes = size_t{4} << 20;
  return "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(kBytes) + "\r\n\r\n" +
         std::string(kBytes - 1, 'b');
}

TEST_F(HttpServerTest, UnfinishedBodiesStayWithinTheBudgetAndTheOldestIsToldSo) {
  const std::string body = AllButOneByte();
  std::vector<std::unique_ptr<RawHttp>> stuck;
  for (int i = 0; i < 12; ++i) {
    stuck.push_back(std::make_unique<RawHttp>(server_->port()));
    stuck.back()->Send(body);
    EXPECT_LE(budget_.held_bytes(), kBudgetBytes);
  }
  const RawAnswer refused = stuck[0]->Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_THAT(refused.body, testing::HasSubstr(std::to_string(kBudgetBytes)));
  EXPECT_TRUE(Eventually([&] { return budget_.num_cut() + budget_.num_refused() >= 8; }));
  // Others are served meanwhile, small and large: what was cut takes a moment to go.
  EXPECT_EQ(RawHttp(server_->port()).Exchange("/other").status, 200);
  EXPECT_TRUE(Eventually([&] {
    return RawHttp(server_->port()).Exchange("/other", std::string(3 << 20, 'x')).status == 200;
  }));
  stuck.clear();
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() == 0; }));
}

TEST_F(HttpServerTest, ConnectionsThatSayNothingGiveWayToTheOneThatDoes) {
  constexpr int kRoom = 64, kMore = 30;
  MemoryBudget budget(kRoom * kBudgetBytes);
  const auto server = *HttpServer::Create(
      {.address = {.ip = "127.0.0.1"}, .budget = &budget, .max_connections = kRoom}, &handler_);
  std::vector<std::unique_ptr<RawHttp>> silent;
  for (int i = 0; i < kRoom + kMore; ++i) {
    silent.push_back(std::make_unique<RawHttp>(server->port()));
  }
  EXPECT_EQ(RawHttp(server->port()).Exchange("/other").status, 200);
  EXPECT_LE(budget.held_bytes(), budget.limit_bytes());
  EXPECT_GE(budget.num_cut(), kMore);
  EXPECT_EQ(silent[0]->Read().status, 503);
  EXPECT_EQ(silent.back()->Exchange("/other").status, 200);
}

TEST_F(HttpServerTest, AClientThatSendsAheadAndLeavesIsNoticed) {
  std::atomic<bool> left{false};
  {
    RawHttp client(server_->port());
    client.SendRequest("/held");
    ASSERT_TRUE(client.ReadUntil("begun"));
    handler_.held->Post([&] { handler_.held->OnLeft([&] { left = true; }); });
    client.Send(std::string(size_t{4} << 20, 'x'));
    EXPECT_LT(budget_.held_bytes(), 1 << 20);
  }
  EXPECT_TRUE(Eventually([&] { return left.load(); }));
  handler_.held.reset();
}

TEST_F(HttpServerTest, AClientThatSendsTooFarAheadGetsTheAnswerThatIsBeingMade) {
  RawHttp client(server_->port());
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  client.Send(std::string(size_t{16} << 20, 'x'));  // More than the kernel holds.
  handler_.held->Write(" and ended");
  handler_.held->EndStream();
  handler_.held.reset();
  const RawAnswer answer = client.Read();
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.body, "begun and ended");
  EXPECT_EQ(client.ReadToEnd(), 0u) << "it was the last";
}

TEST_F(HttpServerTest, WhatAStreamHasWrittenIsChargedNoLonger) {
  RawHttp client(server_->port());
  client.SendRequest("/held", "");
  ASSERT_TRUE(client.ReadUntil("begun"));
  handler_.held->Write(std::string(200'000, 'x') + "end");
  ASSERT_TRUE(client.ReadUntil("end"));
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() == kHttpConnectionBytes; }));
  handler_.held->EndStream();
  handler_.held.reset();
}

TEST_F(HttpServerTest, AByteAfterALastRequestCostsNothingOfItsAnswer) {
  RawHttp client(server_->port(), /*receive_buffer_bytes=*/2 << 10);
  client.SendRequest("/silent", "", "Connection: close\r\n");
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  handler_.held->Send(200, "text/plain",
                      std::string(60'000, 'x'));  // The client's side holds less.
  std::atomic<bool> written{false};
  handler_.held->Post([&] { written = true; });
  ASSERT_TRUE(Eventually([&] { return written && budget_.held_bytes() <= kHttpConnectionBytes; }))
      << "the rest is with the kernel";
  client.Send("\r\n");
  EXPECT_TRUE(client.Read().complete);
  handler_.held.reset();
}

TEST_F(HttpServerTest, RequestsThatAreSentAheadAreAnsweredInTurn) {
  RawHttp client(server_->port());
  for (const char* id : {"first", "second", "third"}) {
    client.SendRequest("/", std::string(5000, 'x'), "X-Request-Id: " + std::string(id) + "\r\n");
  }
  for (const char* id : {"first", "second", "third"}) EXPECT_EQ(client.Read().body, id);
}

}  // namespace
}  // namespace tandem
