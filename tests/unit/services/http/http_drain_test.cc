// A server that drains, by what a connection is at: nothing yet, idle, a head, a body, an answer, a
// stream.

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "services/http/http_server.h"
#include "tests/support/raw_http.h"
#include "tests/unit/services/http/http_server_fixture.h"

namespace tandem {
namespace {

using std::chrono_literals::operator""ms;

class HttpDrainTest : public HttpTimesTest {
 protected:
  static constexpr char kHead[] =
      "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n";
  // A field's line, more than a connection has for nothing: that it was read shows.
  static constexpr size_t kLineBytes = 12'000;

  static bool IsLast(const RawAnswer& answer) {
    const auto connection = answer.headers.find("connection");
    return connection != answer.headers.end() && connection->second == "close";
  }
  // Whether that is the answer, and it ends the connection.
  static bool IsTheLast(RawHttp* client, int status) {
    const RawAnswer answer = client->Read();
    EXPECT_EQ(answer.status, status);
    return IsLast(answer) && client->ReadToEnd() == 0;
  }
  bool HasRead(size_t bytes) {
    return Eventually(
        [&] { return budget_.held_bytes() > kHttpConnectionBytes + static_cast<int64_t>(bytes); });
  }
};

TEST_F(HttpDrainTest, WhoIsKeptMayAskOnceMore) {
  RawHttp client(Serve([](HttpTimes* times) { times->discard_in_drain = 0ms; }));
  EXPECT_FALSE(IsLast(client.Exchange("/other")));
  server_->BeginDrain();
  client.SendRequest("/other");
  EXPECT_TRUE(IsTheLast(&client, 200));
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpDrainTest, WhoIsKeptAndAsksNoMoreIsClosed) {
  RawHttp client(Serve([](HttpTimes* times) { times->last_request = 20ms; }));
  EXPECT_EQ(client.Exchange("/other").status, 200);
  server_->BeginDrain();
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpDrainTest, WhoHasJustConnectedMayAskOnce) {
  RawHttp client(Serve([](HttpTimes*) {}));
  ASSERT_TRUE(Eventually([&] { return num_open_ == 1; }));
  server_->BeginDrain();
  client.SendRequest("/other");
  EXPECT_TRUE(IsTheLast(&client, 200));
}

TEST_F(HttpDrainTest, WhoHasJustConnectedAndAsksNothingIsClosed) {
  RawHttp client(Serve([](HttpTimes* times) { times->last_request = 20ms; }));
  ASSERT_TRUE(Eventually([&] { return num_open_ == 1; }));
  server_->BeginDrain();
  EXPECT_TRUE(OneIsClosed());
}

// Whose connection the kernel has made, while the server had no time to take it.
TEST_F(HttpDrainTest, WhoWaitsInTheQueueIsServed) {
  const int port = Serve([](HttpTimes*) {}, /*num_threads=*/1);
  RawHttp blocking(port);
  blocking.SendRequest("/block");
  ASSERT_TRUE(Eventually([&] { return handler_.blocked.load(); }));
  RawHttp first(port), second(port);
  first.SendRequest("/other");
  auto drain = std::async(std::launch::async, [&] { server_->BeginDrain(); });
  second.SendRequest("/other");
  handler_.blocked = false;  // Perhaps before the drain begins: then they are told nothing of it.
  EXPECT_EQ(first.Read().status, 200);
  EXPECT_EQ(second.Read().status, 200);
  drain.wait();
}

TEST_F(HttpDrainTest, AHeadIsReadToItsEnd) {
  RawHttp client(Serve([](HttpTimes* times) { times->last_request = 0ms; }));
  client.Send("GET /other HTTP/1.1\r\nHost: x\r\nx: " + std::string(kLineBytes, 'x'));
  ASSERT_TRUE(HasRead(0));
  server_->BeginDrain();
  client.Send("\r\n\r\n");
  EXPECT_TRUE(IsTheLast(&client, 200));
}

TEST_F(HttpDrainTest, AHeadHasItsOrdinaryTime) {
  RawHttp client(Serve([](HttpTimes* times) { times->header = 500ms; }));
  ASSERT_TRUE(Eventually([&] { return num_open_ == 1; }));
  server_->BeginDrain();
  client.Send("GET /other HTTP/1.1\r\n");
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpDrainTest, ABodyIsReadToItsEnd) {
  RawHttp client(Serve([](HttpTimes* times) { times->last_request = 0ms; }));
  client.Send(kHead);
  ASSERT_EQ(client.Read().status, 100);
  server_->BeginDrain();
  client.Send("123456789");
  EXPECT_TRUE(IsTheLast(&client, 200));
}

TEST_F(HttpDrainTest, AnAnswerThatHasNotBegunSaysThatItIsTheLast) {
  RawHttp client(Serve([](HttpTimes*) {}));
  client.SendRequest("/silent");
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  server_->BeginDrain();
  handler_.held->Send(200, "text/plain", "late");
  handler_.held.reset();
  EXPECT_TRUE(IsTheLast(&client, 200));
}

TEST_F(HttpDrainTest, AStreamThatHasNotBegunSaysThatItIsTheLast) {
  RawHttp client(Serve([](HttpTimes*) {}));
  client.SendRequest("/silent");
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  server_->BeginDrain();
  handler_.held->StartStream(200, "text/plain");
  handler_.held->Write("late");
  handler_.held->EndStream();
  handler_.held.reset();
  EXPECT_TRUE(IsTheLast(&client, 200));
}

TEST_F(HttpDrainTest, AfterAStreamThatSaidOtherwiseItsClientMayAskOnceMore) {
  RawHttp client(Serve([](HttpTimes*) {}));
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  server_->BeginDrain();
  handler_.held->EndStream();
  handler_.held.reset();
  const RawAnswer stream = client.Read();
  EXPECT_TRUE(stream.complete && !IsLast(stream));
  client.SendRequest("/other");
  EXPECT_TRUE(IsTheLast(&client, 200));
}

TEST_F(HttpDrainTest, AfterAStreamWhoAsksNoMoreIsClosed) {
  RawHttp client(Serve([](HttpTimes* times) { times->last_request = 20ms; }));
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  server_->BeginDrain();
  handler_.held->EndStream();
  handler_.held.reset();
  EXPECT_TRUE(client.Read().complete);
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpDrainTest, RequestsThatWereSentAheadAreAllAnswered) {
  RawHttp client(Serve([](HttpTimes*) {}));
  client.SendRequest("/silent");
  client.SendRequest("/other");
  client.Send("GET /other HTTP/1.1\r\nHost: x\r\nx: " + std::string(kLineBytes, 'x'));
  ASSERT_TRUE(HasRead(0));
  server_->BeginDrain();
  client.Send("\r\n\r\n");
  handler_.held->Send(200, "text/plain", "late");
  handler_.held.reset();
  EXPECT_EQ(client.Read().body, "late");
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_TRUE(IsTheLast(&client, 200));
}

TEST_F(HttpDrainTest, WhoHasItsAnswerHasSoLongToLeave) {
  const int port = Serve([](HttpTimes* times) { times->discard_in_drain = 20ms; });
  RawHttp refused(port), asking(port);
  refused.Send("nonsense\r\n\r\n");
  EXPECT_EQ(refused.Read().status, 400);
  asking.SendRequest("/silent");
  ASSERT_TRUE(Eventually([&] { return handler_.silent.load(); }));
  server_->BeginDrain();
  EXPECT_TRUE(OneIsClosed());
  handler_.held->Send(200, "text/plain", "late");
  handler_.held.reset();
  EXPECT_TRUE(AreClosed(2));
}

// ---- Its end ----

TEST_F(HttpDrainTest, AtItsEndWhoAsksNothingIsClosed) {
  const int port = Serve([](HttpTimes*) {});
  RawHttp idle(port), silent(port);
  EXPECT_EQ(idle.Exchange("/other").status, 200);
  ASSERT_TRUE(Eventually([&] { return num_open_ == 2; }));
  server_->BeginDrain();
  server_->EndDrain();
  EXPECT_EQ(idle.ReadToEnd(), 0u);
  EXPECT_EQ(silent.ReadToEnd(), 0u);
}

TEST_F(HttpDrainTest, AtItsEndAPartOfARequestIsToldSo) {
  const int port = Serve([](HttpTimes*) {});
  RawHttp head(port), body(port);
  head.Send("GET /other HTTP/1.1\r\nHost: x\r\nx: " + std::string(kLineBytes, 'x'));
  ASSERT_TRUE(HasRead(0));
  body.Send(kHead);
  ASSERT_EQ(body.Read().status, 100);
  server_->BeginDrain();
  server_->EndDrain();
  EXPECT_TRUE(IsTheLast(&head, 503));
  EXPECT_TRUE(IsTheLast(&body, 503));
}

TEST_F(HttpDrainTest, AtItsEndWhoWasRefusedHasSoLongToLeave) {
  RawHttp client(Serve([](HttpTimes* times) { times->discard_in_drain = 20ms; }));
  client.Send("nonsense\r\n\r\n");
  EXPECT_EQ(client.Read().status, 400);
  server_->EndDrain();
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpDrainTest, AfterItsEndAStreamThatSaidOtherwiseIsTheLast) {
  RawHttp client(Serve([](HttpTimes* times) { times->discard_in_drain = 0ms; }));
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  server_->EndDrain();
  handler_.held->EndStream();
  handler_.held.reset();
  EXPECT_TRUE(client.Read().complete);
  EXPECT_TRUE(OneIsClosed());
}

TEST_F(HttpDrainTest, AfterItsEndNoneBegins) {
  RawHttp client(Serve([](HttpTimes* times) { times->discard_in_drain = 0ms; }));
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  server_->EndDrain();
  server_->BeginDrain();
  handler_.held->EndStream();
  handler_.held.reset();
  EXPECT_TRUE(client.Read().complete);
  EXPECT_TRUE(OneIsClosed()) << "it may not ask once more";
}

}  // namespace
}  // namespace tandem
