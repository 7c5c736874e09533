#include "services/router/app/client_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tandem {
namespace {

TEST(ClientFlagsTest, ReachARouterAsTheyWereGiven) {
  const std::vector<std::string> given = {"--http=127.0.0.1:1",
                                          "--grpc=127.0.0.1:2",
                                          "--disaggregate=never",
                                          "--max-queued-requests=7",
                                          "--drain-seconds=9",
                                          "--admin=127.0.0.1:3",
                                          "--allowed-host=a,b",
                                          "--cors-origin=https://c",
                                          "--api-key-file=k",
                                          "--tls-cert=c",
                                          "--tls-key=d",
                                          "--tls-client-ca=e",
                                          "--isolate-cache",
                                          "--insecure-public-listen",
                                          "--memory-limit=33554432"};
  ClientFlags clients;
  FlagSet flags("program", "");
  clients.Declare(&flags);
  ASSERT_TRUE(flags.Parse(given).ok());
  EXPECT_EQ(clients.Arguments(), given);
  EXPECT_EQ(given.size(), flags.Values().size()) << "one of them is not handed on";
  const absl::StatusOr<ClientFlags::Addresses> addresses = clients.Check();
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_EQ(addresses->http.port, 1);
  EXPECT_EQ(addresses->grpc.port, 2);
  EXPECT_EQ(addresses->admin->port, 3);
}

TEST(ClientFlagsTest, WhatWasNotGivenIsNotHandedOn) {
  EXPECT_THAT(ClientFlags().Arguments(),
              testing::ElementsAre(testing::StartsWith("--http="), testing::StartsWith("--grpc="),
                                   testing::StartsWith("--disaggregate="),
                                   testing::StartsWith("--max-queued-requests="),
                                   testing::StartsWith("--drain-seconds=")));
}

TEST(ClientFlagsTest, AnAddressBeyondLoopbackNeedsTlsAndKnownClients) {
  const auto accepted = [](const std::vector<std::string>& given) {
    ClientFlags clients;
    FlagSet flags("program", "");
    clients.Declare(&flags);
    EXPECT_TRUE(flags.Parse(given).ok());
    return clients.Check().ok();
  };
  for (const std::string address : {"--http=0.0.0.0:1", "--grpc=0.0.0.0:1"}) {
    EXPECT_FALSE(accepted({address}));
    EXPECT_FALSE(accepted({address, "--tls-cert=c", "--tls-key=k"})) << address;
    EXPECT_FALSE(accepted({address, "--api-key-file=f"})) << address;
    EXPECT_TRUE(accepted({address, "--tls-cert=c", "--tls-key=k", "--api-key-file=f"})) << address;
    EXPECT_TRUE(accepted({address, "--tls-cert=c", "--tls-key=k", "--tls-client-ca=a"})) << address;
    EXPECT_TRUE(accepted({address, "--insecure-public-listen"})) << address;
  }
  EXPECT_TRUE(accepted({"--http=127.0.0.1:1", "--grpc=127.0.0.1:2"}));
}

TEST(ClientFlagsTest, WhatCannotBeMeantIsNamed) {
  for (const auto& [given, flag] :
       {std::pair("--http=nowhere", "--http: "), std::pair("--grpc=nowhere", "--grpc: "),
        std::pair("--admin=nowhere", "--admin: "),
        std::pair("--memory-limit=1MiB", "--memory-limit: ")}) {
    ClientFlags clients;
    FlagSet flags("program", "");
    clients.Declare(&flags);
    ASSERT_TRUE(flags.Parse({given}).ok()) << given;
    EXPECT_THAT(std::string(clients.Check().status().message()), testing::StartsWith(flag));
  }
}

TEST(ClientFlagsTest, HalfOfTlsIsRefused) {
  for (const std::string half : {"--tls-cert=c", "--tls-key=k", "--tls-client-ca=a"}) {
    ClientFlags clients;
    FlagSet flags("program", "");
    clients.Declare(&flags);
    ASSERT_TRUE(flags.Parse({half}).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(clients.Check().status())) << half;
  }
}

}  // namespace
}  // namespace tandem
