#include "services/router/app/router_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::StatusOr<RouterOptions> OptionsOf(const std::vector<std::string>& given) {
  RouterFlags values;
  FlagSet flags("program", "");
  values.Declare(&flags);
  const absl::Status parsed = flags.Parse(given).status();
  EXPECT_TRUE(parsed.ok()) << parsed;
  return values.Options();
}

TEST(RouterFlagsTest, ReachTheRouterAsTheyWereGiven) {
  const TempFolder folder;
  const std::string secret = folder.Write("secret", std::string(32, 's'));
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  const absl::StatusOr<RouterOptions> options = OptionsOf({"--model=m",
                                                           "--served-model-name=served",
                                                           "--workers=a:1,,b:2",
                                                           "--http=127.0.0.1:1",
                                                           "--grpc=127.0.0.1:2",
                                                           "--admin=127.0.0.1:3",
                                                           "--disaggregate=never",
                                                           "--allowed-host=c,d",
                                                           "--cors-origin=https://e,https://f",
                                                           "--api-key-file=keys",
                                                           "--tls-cert=cert",
                                                           "--tls-key=key",
                                                           "--tls-client-ca=ca",
                                                           "--isolate-cache",
                                                           "--max-queued-requests=7",
                                                           "--memory-limit=33554432",
                                                           "--fleet-secret-file=" + secret,
                                                           "--fleet-tls-cert=g",
                                                           "--fleet-tls-key=h",
                                                           "--fleet-tls-ca=i",
                                                           "--fleet-tls-name=fleet",
                                                           "--liveness-scale=2",
                                                           "--name=mine"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->model, "m");
  EXPECT_EQ(options->served_model_name, "served");
  EXPECT_THAT(options->workers, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(options->workers_dns, "");
  EXPECT_EQ(options->http.port, 1);
  EXPECT_EQ(options->grpc.port, 2);
  EXPECT_EQ(options->admin->port, 3);
  EXPECT_EQ(options->disaggregate, DisaggregatePolicy::kNever);
  EXPECT_THAT(options->allowed_hosts, ElementsAre("c", "d"));
  EXPECT_THAT(options->cors_origins, ElementsAre("https://e", "https://f"));
  EXPECT_EQ(options->api_key_file, "keys");
  EXPECT_EQ(options->tls.certificate, "cert");
  EXPECT_EQ(options->tls.key, "key");
  EXPECT_EQ(options->tls.client_authorities, "ca");
  EXPECT_TRUE(options->isolate_cache);
  EXPECT_EQ(options->max_queued_requests, 7);
  EXPECT_EQ(options->memory_limit_bytes, 32 << 20);
  EXPECT_TRUE(options->secret.configured());
  EXPECT_EQ(options->fleet_tls.certificate, "g");
  EXPECT_EQ(options->fleet_tls.name, "fleet");
  EXPECT_EQ(options->liveness_scale, 2);
  EXPECT_EQ(options->name, "mine");
}

TEST(RouterFlagsTest, WhatIsLeftOutAsksForNothing) {
  const absl::StatusOr<RouterOptions> options = OptionsOf({"--model=m", "--workers-dns=name:1"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->workers_dns, "name:1");
  EXPECT_THAT(options->workers, IsEmpty());
  EXPECT_FALSE(options->admin.has_value());
  EXPECT_EQ(options->disaggregate, DisaggregatePolicy::kAuto);
  EXPECT_THAT(options->allowed_hosts, IsEmpty());
  EXPECT_THAT(options->cors_origins, IsEmpty());
  EXPECT_EQ(options->api_key_file, "");
  EXPECT_FALSE(options->isolate_cache);
  EXPECT_EQ(options->memory_limit_bytes, 0);
  EXPECT_FALSE(options->secret.configured());
  EXPECT_EQ(OptionsOf({"--model=m", "--workers=a:1", "--disaggregate=always"})->disaggregate,
            DisaggregatePolicy::kAlways);
}

TEST(RouterFlagsTest, WhatCannotBeMeantIsNamed) {
  const std::string longest(256, 'n');
  EXPECT_TRUE(OptionsOf({"--model=m", "--workers=a:1", "--name=" + longest}).ok());
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--workers=a:1"}, "--model"},
      {{"--model=m"}, "exactly one of --workers and --workers-dns"},
      {{"--model=m", "--workers=a:1", "--workers-dns=b:1"}, "exactly one of"},
      {{"--model=m", "--workers=a:1,b"}, "--workers: \"b\""},
      {{"--model=m", "--workers=a:0"}, "--workers: \"a:0\""},
      {{"--model=m", "--workers=a:1,b:1,a:1"}, "\"a:1\" is there twice"},
      {{"--model=m", "--workers=,"}, "names no address"},
      {{"--model=m", "--workers-dns=a"}, "--workers-dns: \"a\""},
      {{"--model=m", "--workers=a:1", "--name=" + longest + "n"}, "--name: 257 bytes"},
      {{"--model=m", "--workers=a:1", "--name=\xff"}, "--name: 1 bytes"},
      {{"--model=m", "--workers=a:1", "--http=0.0.0.0:1"}, "--http: "},
      {{"--model=m", "--workers=a:1", "--fleet-secret-file=/nonexistent"}, "/nonexistent"},
  };
  for (const auto& [given, why] : cases) {
    const absl::Status status = OptionsOf(given).status();
    EXPECT_FALSE(status.ok()) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace tandem
