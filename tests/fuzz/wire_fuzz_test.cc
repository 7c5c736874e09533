#include <gtest/gtest.h>

#include "runtime/transport/ucx/ucx_address.h"
#include "services/server/metrics_registry.h"
#include "services/worker/kv_frame_codec.h"
#include "tests/fuzz/mutation.h"
#include "tests/support/wire_cases.h"

namespace tandem {
namespace {

template <typename Message, typename Struct>
void Add(char kind, const std::vector<Struct>& cases, std::vector<std::string>* inputs) {
  for (const Struct& in : cases) {
    Message message;
    ToProto(in, &message);
    inputs->push_back(kind + message.SerializeAsString());
  }
}

TEST(WireFuzzTest, DamagedMessagesAreRefusedOrSayTheSameTwice) {
  constexpr uint64_t kSeed = 20261121;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::vector<std::string> inputs;
  Add<proto::ToWorker>(0, WireCommands(), &inputs);
  Add<proto::StepBatch>(
      1,
      std::vector<StepBatch>{
          {.worker_incarnation = 1, .events = WireEvents(), .chunks = {WireChunk()}}},
      &inputs);
  Add<proto::WatchEvent>(2, WireUpdates(), &inputs);
  Add<proto::ToPrefill>(3, WireToPrefill(), &inputs);
  Add<proto::ToDecode>(4, WireToDecode(), &inputs);
  Add<proto::PrefillHello>(5, std::vector<PrefillHello>{WireHello()}, &inputs);
  MetricsRegistry registry;
  registry.Histogram("tandem_h", "Help.", {1, 2}).Observe(1);
  registry.Counter("tandem_c_total", "Help.", {{"a", "b"}}).Increment();
  v1::MetricsSnapshot snapshot;
  MetricsToProto(registry.Collect(), &snapshot);
  inputs.push_back(char{6} + snapshot.SerializeAsString());
  const FrameHeader header{.reservation = {.index = 1, .generation = 2},
                           .ordinal = 3,
                           .length_bytes = 300,
                           .shard = {1, 2},
                           .crc32c = 4};
  inputs.push_back(char{7} + EncodeFramePrefix(header, 300) + std::string(300, 'p'));
  inputs.push_back(char{8} + EncodeUcxAddress({.link = 1,
                                               .host = "host",
                                               .worker_address = "worker",
                                               .network = true,
                                               .pool_key = "key",
                                               .pool_base = 4096,
                                               .block_bytes = 64,
                                               .num_blocks = 10}));
  RunFuzzer(inputs, /*count=*/40000, kSeed);
  SUCCEED() << "every input was answered";
}

}  // namespace
}  // namespace tandem
