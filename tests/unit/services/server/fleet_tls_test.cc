// Who of a fleet takes whom, through gRPC's own TLS on the one side and ours on the other.

#include "services/server/fleet_tls.h"

#include <grpcpp/channel.h>
#include <gtest/gtest.h>

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
    Write(who, authority_.Issue("fleet"));
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
    const GatedServerOptions options{.gate = {.address = "127.0.0.1:0",
                                              .tls = {.identity = tls_->identity()},
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
  std::unique_ptr<GatedServer> server_;
};

// An operator replaces the certificate, and the key a minute later.
TEST_F(FleetTlsTest, APairThatDoesNotFitBreaksNoNewConnection) {
  Serve(Files("server", "fleet"));
  const auto client = *FleetTls::Open(Files("client", "fleet"));
  const uint64_t generation = client->generation();
  folder_.Write("client.pem", authority_.Issue("fleet").pem);
  client->identity()->Look();
  EXPECT_TRUE(Connects(Dial(*client)));
  std::remove((folder_.path() + "/client.key").c_str());
  client->identity()->Look();
  EXPECT_TRUE(Connects(Dial(*client)));
  Write("client", authority_.Issue("fleet", /*days=*/0));
  client->identity()->Look();
  EXPECT_TRUE(Connects(Dial(*client)));
  EXPECT_EQ(client->generation(), generation);
}

TEST_F(FleetTlsTest, WhatIsDialledLaterHasWhatWasTakenSince) {
  Serve(Files("server", "fleet"));
  const auto client = *FleetTls::Open(Files("client", "fleet"));
  const uint64_t generation = client->generation();
  const TestAuthority next;
  Write("server", next.Issue("fleet"));
  tls_->identity()->Look();
  folder_.Write("client.ca", next.pem());
  client->identity()->Look();
  EXPECT_NE(client->generation(), generation);
  EXPECT_TRUE(Connects(Dial(*client)));
}

// A cluster's authorities sign others' certificates, too.
TEST_F(FleetTlsTest, WhoDialsMustBeForTheFleetsName) {
  Serve(Files("server", "fleet"));
  const auto client = *FleetTls::Open(Files("client", "fleet"));
  EXPECT_TRUE(Connects(Dial(*client)));
  Write("client", authority_.Issue("another"));
  client->identity()->Look();
  const std::shared_ptr<grpc::Channel> refused = Dial(*client);
  refused->GetState(/*try_to_connect=*/true);
  EXPECT_TRUE(Eventually([&] { return num_failed_ > 0; }));
  EXPECT_EQ(num_ok_, 1);
}

TEST_F(FleetTlsTest, WithoutANameWhoDialsMayBeForAny) {
  FleetTlsFlags files = Files("server", "");
  Serve(files);
  files = Files("client", "fleet");
  Write("client", authority_.Issue("another"));
  EXPECT_TRUE(Connects(Dial(**FleetTls::Open(files))));
}

}  // namespace
}  // namespace tandem
