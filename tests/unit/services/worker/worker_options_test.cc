#include "services/worker/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/server/limits.h"

namespace tandem {
namespace {

using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(WorkerOptionsTest, FlagsThatCannotBeRightAreNamed) {
  WorkerOptions good;
  good.model = "folder";
  EXPECT_TRUE(CheckWorkerOptions(good).ok());
  EXPECT_THAT(Message(CheckWorkerOptions({})), HasSubstr("--model"));
  WorkerOptions block = good;
  block.block_size = 24;
  EXPECT_THAT(Message(CheckWorkerOptions(block)), HasSubstr("24"));
  WorkerOptions device = good;
  device.device = "gpu";
  EXPECT_THAT(Message(CheckWorkerOptions(device)), HasSubstr("--device: \"gpu\", want auto"));
  WorkerOptions memory = good;
  memory.memory_limit.bytes = 1 << 20;
  EXPECT_THAT(Message(CheckWorkerOptions(memory)), HasSubstr("--memory-limit"));
  WorkerOptions named = good;  // Protobuf takes no other text, and peers no longer one.
  for (const std::string& name :
       {std::string(), std::string(kMaxNameBytes + 1, 'n'), std::string("\xff")}) {
    named.name = name;
    EXPECT_THAT(Message(CheckWorkerOptions(named)), HasSubstr("--name")) << name;
  }
  named.name = std::string(kMaxNameBytes, 'n');
  EXPECT_TRUE(CheckWorkerOptions(named).ok());
  WorkerOptions address = good;
  for (const char* listen : {"nowhere", "127.0.0.1:", "127.0.0.1:99999", ":7000"}) {
    address.listen = listen;
    EXPECT_THAT(Message(CheckWorkerOptions(address)), HasSubstr("--listen")) << listen;
  }
}

TEST(WorkerOptionsTest, PublicAddressNeedsTheOperatorsWord) {
  WorkerOptions options;
  options.model = "folder";
  options.listen = "0.0.0.0:7000";
  const absl::Status refused = CheckWorkerOptions(options);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused), HasSubstr("--listen"));
  EXPECT_THAT(Message(refused), HasSubstr("--fleet-tls-cert"));
  WorkerOptions secure = options;
  secure.fleet.tls.certificate = secure.fleet.tls.key = secure.fleet.tls.authorities = "file";
  EXPECT_TRUE(CheckWorkerOptions(secure).ok());
  options.insecure_public_listen = true;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
}

TEST(WorkerOptionsTest, ProbesAndMetricsMayBeAtAnyAddress) {
  WorkerOptions options;
  options.model = "folder";
  options.admin = "[::]:7001";
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  EXPECT_EQ((*AdminAddress(options))->ToString(), "[::]:7001");
  options.admin = "nowhere";
  EXPECT_THAT(Message(CheckWorkerOptions(options)), HasSubstr("--admin"));
}

TEST(WorkerOptionsTest, FleetTlsNeedsItsThreeFiles) {
  WorkerOptions options;
  options.model = "folder";
  for (std::string FleetTlsFlags::*const flag :
       {&FleetTlsFlags::certificate, &FleetTlsFlags::key, &FleetTlsFlags::authorities,
        &FleetTlsFlags::name}) {
    options.fleet.tls = {};
    options.fleet.tls.*flag = "file";
    EXPECT_THAT(Message(CheckWorkerOptions(options)), HasSubstr("--fleet-tls-ca"));
  }
}

TEST(WorkerOptionsTest, OnlyAddressesOfThisMachineAreLoopback) {
  WorkerOptions options;
  options.model = "folder";
  for (const char* listen : {"127.0.0.1:0", "127.9.8.7:7000", "localhost:7000", "[::1]:7000",
                             "[::ffff:127.0.0.1]:7000", "unix:/run/worker"}) {
    options.listen = listen;
    EXPECT_TRUE(CheckWorkerOptions(options).ok()) << listen;
  }
  for (const char* listen :
       {"127.example.org:7000", "127.0.0.1.nip.io:7000", "127.:7000", "localhost.example:7000",
        "[localhost]:7000", "[::]:7000", "[::ffff:10.0.0.1]:7000", "128.0.0.1:7000"}) {
    options.listen = listen;
    EXPECT_THAT(Message(CheckWorkerOptions(options)), HasSubstr("not loopback")) << listen;
  }
}

TEST(WorkerOptionsTest, EngineFlagsReachAWorkerAsTheyWereGiven) {
  const std::vector<std::string> given = {"--served-model-name=m",
                                          "--transport=ucx",
                                          "--ucx-devices=eth0",
                                          "--kv-memory=123456",
                                          "--max-model-len=512",
                                          "--max-num-seqs=7",
                                          "--max-batched-tokens=99",
                                          "--block-size=32",
                                          "--device=cuda:2",
                                          "--gpu-memory-utilization=0.75",
                                          "--threads=3",
                                          "--dtype=bf16",
                                          "--weights=int8",
                                          "--output-weights=dtype",
                                          "--int8-outliers=6.25",
                                          "--kv-dtype=int8g8",
                                          "--isa=avx2",
                                          "--load-format=dummy",
                                          "--cache-dir=/c",
                                          "--liveness-scale=2.5"};
  WorkerOptions options;
  ASSERT_TRUE(WorkerFlags(&options).Parse(given).ok());
  EXPECT_EQ(options.Arguments(), given);
  EXPECT_EQ(options.kv_memory.bytes, 123456);
  EngineFlags untouched;
  FlagSet flags("program", "");
  untouched.Declare(&flags);
  ASSERT_TRUE(flags.Parse(EngineFlags().Arguments()).ok()) << "defaults are good values, too";
}

TEST(WorkerOptionsTest, FlagsOfTheProcessAreKeptAsTheyWereGiven) {
  WorkerOptions options;
  ASSERT_TRUE(WorkerFlags(&options)
                  .Parse({"--model=folder", "--name=n", "--incarnation=7", "--ended=5:crash",
                          "--role=decode", "--listen=10.0.0.1:1", "--admin=10.0.0.1:2",
                          "--port-file=/port", "--insecure-public-listen",
                          "--fleet-secret-file=/secret", "--nccl-interface=eth1",
                          "--machine-share=2", "--memory-limit=64MiB", "--drain-seconds=40"})
                  .ok());
  EXPECT_EQ(options.model, "folder");
  EXPECT_EQ(options.name, "n");
  EXPECT_EQ(options.incarnation, 7);
  EXPECT_EQ(options.ended, "5:crash");
  EXPECT_EQ(options.role, "decode");
  EXPECT_EQ(options.listen, "10.0.0.1:1");
  EXPECT_EQ(options.admin, "10.0.0.1:2");
  EXPECT_EQ(options.port_file, "/port");
  EXPECT_TRUE(options.insecure_public_listen);
  EXPECT_EQ(options.fleet.secret_file, "/secret");
  EXPECT_EQ(options.nccl_interface, "eth1");
  EXPECT_EQ(options.machine_share, 2);
  EXPECT_EQ(options.memory_limit.bytes, 64 << 20);
  EXPECT_EQ(options.drain_seconds, 40);
}

TEST(WorkerOptionsTest, HelpNamesEveryFlagWithItsDefault) {
  WorkerOptions options;
  const std::string help = WorkerFlags(&options).Help();
  for (const char* flag : {"--model",
                           "--name",
                           "--role",
                           "--listen",
                           "--transport",
                           "--ucx-devices",
                           "--nccl-interface",
                           "--kv-memory",
                           "--max-model-len",
                           "--max-num-seqs",
                           "--block-size",
                           "--threads",
                           "--dtype",
                           "--isa",
                           "--load-format",
                           "--cache-dir",
                           "--served-model-name",
                           "--liveness-scale",
                           "--max-batched-tokens",
                           "--port-file"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
}

TEST(WorkerOptionsTest, EndedLivesAreCheckedBeforeAnythingIsLoaded) {
  WorkerOptions options;
  options.model = "folder";
  options.ended = "5:outside,6:crash";
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  options.ended = "5:outside,6:kill";
  const absl::Status status = CheckWorkerOptions(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("--ended: \"6:kill\""));
}

}  // namespace
}  // namespace tandem
