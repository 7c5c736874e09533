// Who of a fleet takes whom, through gRPC's own TLS on the one side and ours on the other.

#include "services/server/fleet_tls.h"

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "services/server/channel.h"
#include "services/server/gated_server.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

class FleetTlsTest : public testing::Test {
 protected:
  FleetTlsFlags Files(const std::string& who, const std::string& name) {
    Write(who,
          authority_.Issue("fleet", {.names = "DNS:fleet,DNS:" + (name.empty() ? "any" : name)}));
    return {.certificate = folder_.path() + "/" + who + ".pem",
            .key = folder_.path() + "/" + who + ".key",
            .authorities = folder_.Write(who + ".ca", authority_.pem()),
            .name = name};
  }
  void Write(const std::string& who, const TestCertificate& shown) {
    folder_.Write(who + ".pem", shown.pem);
    folder_.Write(who + ".key", shown.key);
  }

  void Serve(const FleetTlsFlags& files) {
    tls_ = *FleetTls::Open(files);
    tls_->identity()->SetOnHandshake([this](bool ok) { ++(ok ? num_ok_ : num_failed_); });
    Listen(tls_->identity());
  }
  void Listen(const TlsIdentity* identity) {
    const GatedServerOptions options{.gate = {.address = "127.0.0.1:0",
                                              .tls = {.identity = identity},
                                              .budget = &budget_,
                                              .max_streams = 8,
                                              .max_connections = 8},
                                     .services = {},
                                     .health = {{"", [] { return true; }}}};
    server_ = std::make_unique<GatedServer>(options, &calls_);
    grpc::ServerBuilder builder;
    ConfigureServer(20, &builder);
    ASSERT_TRUE(server_->Open(&builder).ok());
    server_->Serve();
  }
  std::shared_ptr<grpc::Channel> Dial(const FleetTls& tls) const {
    return DialControl("127.0.0.1:" + std::to_string(server_->port()), 20, kMaxMessageBytes, &tls);
  }
  static bool Connects(const std::shared_ptr<grpc::Channel>& channel) {
    return channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::minutes(1));
  }

  TempFolder folder_;
  const TestAuthority authority_;
  MemoryBudget budget_{int64_t{64} << 20};
  OpenCalls calls_{&budget_, {}};
  std::atomic<int> num_ok_{0}, num_failed_{0};
  std::unique_ptr<FleetTls> tls_;
  std::unique_ptr<TlsIdentity> identity_;  // A server has it that is not of the fleet.
  std::unique_ptr<GatedServer> server_;
};

// An operator replaces the certificate, and the key a minute later.
TEST_F(FleetTlsTest, APairThatDoesNotFitBreaksNoNewConnection) {
  Serve(Files("server", "fleet"));
  const auto client = *FleetTls::Open(Files("client", "fleet"));
  const uint64_t num_changes = client->num_changes();
  folder_.Write("client.pem", authority_.Issue("fleet").pem);
  client->identity()->Look();
  EXPECT_TRUE(Connects(Dial(*client)));
  std::remove((folder_.path() + "/client.key").c_str());
  client->identity()->Look();
  EXPECT_TRUE(Connects(Dial(*client)));
  Write("client", authority_.Issue("fleet", /*days=*/0));
  client->identity()->Look();
  EXPECT_TRUE(Connects(Dial(*client)));
  EXPECT_EQ(client->num_changes(), num_changes);
}

// What peers would refuse is not taken, so that they go on as before.
TEST_F(FleetTlsTest, WhatPeersWouldRefuseChangesNothing) {
  Serve(Files("server", "fleet"));
  const auto client = *FleetTls::Open(Files("client", "fleet"));
  const uint64_t num_changes = client->num_changes();
  const TestAuthority stranger, ended(/*days=*/0);
  const auto refuse = [&](const std::string& pem, const std::string& key, const std::string& ca,
                          const std::string& why) {
    Write("client", {.pem = pem, .key = key});
    folder_.Write("client.ca", ca);
    testing::internal::CaptureStderr();
    client->identity()->Look();
    client->identity()->Look();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, testing::HasSubstr(why));
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << "once: " << log;
    EXPECT_TRUE(client->identity()->refused());
    EXPECT_EQ(client->num_changes(), num_changes) << why;
    EXPECT_TRUE(Connects(Dial(*client))) << why;
  };
  const std::string ca = authority_.pem();
  const auto refuse_made = [&](const TestCertificateOptions& options, const std::string& why) {
    const TestCertificate made = authority_.Issue("fleet", options);
    refuse(made.pem, made.key, ca, why);
  };
  refuse_made({.starts_in_s = 200}, "certificate is not yet valid");
  refuse_made({.days = 0}, "certificate has expired");
  refuse_made({.extended_key_usage = "serverAuth"}, "a client's: unsuitable certificate purpose");
  refuse_made({.extended_key_usage = "clientAuth"}, "is not one for servers");
  refuse_made({.names = "DNS:another.test,IP:127.0.0.1"},
              "CN=fleet, for DNS:another.test, IP Address:127.0.0.1, from 20");
  refuse_made({.names = "DNS:*.test"}, "hostname mismatch");
  refuse_made({.names = "URI:spiffe://a/b"}, "hostname mismatch");
  const TestCertificate strange = stranger.Issue("fleet");
  refuse(strange.pem, strange.key, ca, "unable to get local issuer certificate");
  const TestCertificate good = authority_.Issue("fleet");
  refuse(ended.Issue("fleet").pem, good.key, ended.pem(), "client.key: not the key");
  refuse(good.pem, good.key, stranger.pem(), "unable to get local issuer certificate");
  const TestCertificate of_ended = ended.Issue("fleet");
  refuse(of_ended.pem, of_ended.key, ended.pem(), "certificate has expired (CN=authority ");
  std::string chain = good.pem;
  for (size_t i = 0; i < kMaxTlsChain; ++i) chain += stranger.pem();
  refuse(chain, good.key, ca, "client.pem: more than 10 certificates of a chain");
  std::string authorities;
  for (size_t i = 0; i <= kMaxTlsAuthorities; ++i) authorities += ca;
  refuse(good.pem, good.key, authorities, "client.ca: more than 256 authorities");
  TestCertificateOptions huge{.names = "DNS:fleet"};
  for (int i = 0; i < 8000; ++i) huge.names += ",DNS:name-" + std::to_string(i);
  refuse_made(huge, " bytes, more than 65536");

  Write("client", good);
  folder_.Write("client.ca", ca);
  client->identity()->Look();
  EXPECT_FALSE(client->identity()->refused());
  EXPECT_NE(client->num_changes(), num_changes);
  EXPECT_TRUE(Connects(Dial(*client)));
}

TEST_F(FleetTlsTest, WhatIsRefusedForItsTimeIsTakenOnceItsTimeHasCome) {
  const auto tls = *FleetTls::Open(Files("client", "fleet"));
  const uint64_t num_changes = tls->num_changes();
  const TestCertificate soon = authority_.Issue("fleet", {.starts_in_s = 2});
  Write("client", soon);
  tls->identity()->Look();
  EXPECT_EQ(tls->num_changes(), num_changes);
  EXPECT_TRUE(Eventually([&] {
    tls->identity()->Look();  // At the same files.
    return tls->num_changes() != num_changes;
  }));
  EXPECT_EQ(tls->identity()->pems()->certificate, soon.pem);
}

TEST_F(FleetTlsTest, WhoStartsWithWhatPeersRefuseIsTold) {
  const auto open = [this](const TestCertificateOptions& options) {
    const FleetTlsFlags flags = Files("who", "fleet");
    Write("who", authority_.Issue("fleet", options));
    return FleetTls::Open(flags).status();
  };
  EXPECT_THAT(std::string(open({.names = "DNS:another"}).message()),
              testing::AllOf(testing::HasSubstr("/who.pem: nobody for fleet who believes "),
                             testing::HasSubstr("CN=fleet, for DNS:another, from 20"),
                             testing::HasSubstr("as a server's: hostname mismatch")));
  EXPECT_EQ(open({.days = 0}).code(), absl::StatusCode::kInvalidArgument);
  // Clocks differ; peers believe it as soon as theirs say so.
  EXPECT_TRUE(open({.starts_in_s = static_cast<int>(kClockSkewS) - 60}).ok());
  EXPECT_THAT(std::string(open({.starts_in_s = static_cast<int>(kClockSkewS) + 60}).message()),
              testing::HasSubstr("certificate is not yet valid"));
}

TEST_F(FleetTlsTest, WhatIsDialledLaterHasWhatWasTakenSince) {
  Serve(Files("server", "fleet"));
  const auto client = *FleetTls::Open(Files("client", "fleet"));
  const uint64_t num_changes = client->num_changes();
  const TestAuthority next;
  for (const std::string who : {"server", "client"}) {
    folder_.Write(who + ".ca", authority_.pem() + next.pem());
    Write(who, next.Issue("fleet"));
  }
  tls_->identity()->Look();
  client->identity()->Look();
  EXPECT_NE(client->num_changes(), num_changes);
  folder_.Write("client.ca", next.pem());
  client->identity()->Look();
  EXPECT_TRUE(Connects(Dial(*client)));
}

// What a listener shows whose own process does not judge it.
class FleetTlsBadServerTest : public FleetTlsTest {
 protected:
  // Serves that, dials it as one of `name`, and gives the log's lines that tell of it.
  std::string LogOfDialling(const TestCertificate& shown, const std::string& name) {
    Write("bad", shown);
    identity_ =
        *TlsIdentity::Open({.certificate = folder_.path() + "/bad.pem",
                            .key = folder_.path() + "/bad.key",
                            .client_authorities = folder_.Write("bad.ca", authority_.pem())});
    identity_->SetOnHandshake([this](bool ok) { ++(ok ? num_ok_ : num_failed_); });
    Listen(identity_.get());
    const auto client = *FleetTls::Open(Files("client", name));
    testing::internal::CaptureStderr();
    const std::shared_ptr<grpc::Channel> channel = Dial(*client);
    channel->GetState(/*try_to_connect=*/true);
    EXPECT_TRUE(
        Eventually([&] { return channel->GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE; }));
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(FleetTlsBadServerTest, NobodyIsBelievedWhoIsForAnotherName) {
  EXPECT_THAT(LogOfDialling(authority_.Issue("fleet", {.names = "DNS:another"}), "fleet"),
              testing::HasSubstr("CN=fleet, for DNS:another, from 20"));
}
TEST_F(FleetTlsBadServerTest, NobodyIsBelievedForACommonName) {
  EXPECT_THAT(LogOfDialling(authority_.Issue("fleet", {.names = "IP:127.0.0.1"}), "fleet"),
              testing::HasSubstr("hostname mismatch"));
}
TEST_F(FleetTlsBadServerTest, NobodyIsBelievedForAWildcard) {
  EXPECT_THAT(LogOfDialling(authority_.Issue("a", {.names = "DNS:*.prod.test"}), "fleet.prod.test"),
              testing::HasSubstr("hostname mismatch"));
}
TEST_F(FleetTlsBadServerTest, NobodyIsBelievedWhoseTimeIsOver) {
  EXPECT_THAT(LogOfDialling(authority_.Issue("fleet", /*days=*/0), "fleet"),
              testing::HasSubstr("certificate has expired"));
}
TEST_F(FleetTlsBadServerTest, NobodyIsBelievedWhomAnotherSigned) {
  EXPECT_THAT(LogOfDialling(TestAuthority().Issue("fleet"), "fleet"),
              testing::HasSubstr("unable to get local issuer certificate"));
}
TEST_F(FleetTlsBadServerTest, WithoutANameItIsTheHostThatIsDialled) {
  EXPECT_THAT(LogOfDialling(authority_.Issue("fleet"), ""),
              testing::HasSubstr("IP address mismatch"));
}

// A cluster's authorities sign others' certificates, too.
TEST_F(FleetTlsTest, WhoDialsMustBeForTheFleetsName) {
  const FleetTlsFlags files = Files("server", "fleet");
  Write("server", authority_.Issue("fleet", {.names = "DNS:fleet,DNS:another"}));
  Serve(files);
  const auto client = *FleetTls::Open(Files("client", "fleet"));
  EXPECT_TRUE(Connects(Dial(*client)));
  FleetTlsFlags another = Files("another", "another");
  Write("another", authority_.Issue("another", {.names = "DNS:another,DNS:*.fleet,IP:127.0.0.1"}));
  const auto refused = *FleetTls::Open(another);
  testing::internal::CaptureStderr();
  const std::shared_ptr<grpc::Channel> channel = Dial(*refused);
  channel->GetState(/*try_to_connect=*/true);
  EXPECT_TRUE(Eventually([&] { return num_failed_ > 0; }));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("a client's certificate is refused\",\"peer\":\"127.0.0.1:"));
  EXPECT_THAT(log, testing::HasSubstr("\"presented\":\"CN=another, for DNS:another, DNS:*.fleet"));
  EXPECT_THAT(log, testing::HasSubstr("\"why\":\"hostname mismatch\""));
  EXPECT_EQ(num_ok_, 1);
}

TEST(FleetTlsFlagsTest, AFleetsNameIsOneThatACertificateCanHave) {
  const auto check = [](const std::string& name) {
    return FleetTlsFlags{.certificate = "c", .key = "k", .authorities = "a", .name = name}.Check();
  };
  const std::string label(63, 'x'), longest = label + "." + label + "." + label + "." + label;
  ASSERT_EQ(longest.size(), 255u);
  for (const std::string& good :
       {std::string(), std::string("fleet"), std::string("fleet.test"), std::string("FLEET.test"),
        std::string("a_b.c-d"), std::string("10.0.0.1"), std::string("::1"), label,
        longest.substr(2)}) {
    EXPECT_TRUE(check(good).ok()) << good << ": " << check(good);
  }
  for (const std::string& bad :
       {std::string(".test"), std::string("fleet.test."), std::string("a..b"),
        std::string("*.test"), std::string("f*.test"), std::string("a b"),
        std::string("\xc3\xa4.test"), std::string("."), std::string(64, 'x'), longest.substr(1),
        std::string("a/b"), std::string("[::1]")}) {
    EXPECT_THAT(std::string(check(bad).message()), testing::HasSubstr("--fleet-tls-name: ")) << bad;
  }
}

TEST_F(FleetTlsTest, WhoHangsUpOnAHandshakeMayRefuseTheCertificate) {
  const auto tls = *FleetTls::Open(Files("fleet", "fleet"));
  for (const char* hung_up :
       {"Endpoint read failed", "recvmsg: Connection reset by peer", "sendmsg: Broken pipe"}) {
    const absl::Status why = absl::UnavailableError(hung_up);
    EXPECT_THAT(WhyNotReached(why, tls.get()), testing::HasSubstr("may refuse this process's"));
    EXPECT_EQ(WhyNotReached(why, nullptr), hung_up);
  }
  EXPECT_EQ(WhyNotReached(absl::UnavailableError("Connection refused"), tls.get()),
            "Connection refused");
}

TEST_F(FleetTlsTest, WithoutANameWhoDialsMayBeForAny) {
  const FleetTlsFlags files = Files("server", "");
  Write("server", authority_.Issue("worker", {.names = "IP:127.0.0.1"}));
  Serve(files);
  const FleetTlsFlags client = Files("client", "");
  Write("client", authority_.Issue("another"));
  EXPECT_TRUE(Connects(Dial(**FleetTls::Open(client))));
}

}  // namespace
}  // namespace tandem
