#include "runtime/protocol/peer_terms.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

TEST(PeerTerms, EveryTermMustFit) {
  const PeerTerms ours{.protocol_min = 2,
                       .protocol_max = 3,
                       .kv_class = "kv",
                       .numerics_id = "n",
                       .transport = "ucx"};
  EXPECT_TRUE(CheckPeerTerms(ours, ours).ok());
  PeerTerms neighbour = ours;
  neighbour.protocol_min = 3;
  neighbour.protocol_max = 4;
  EXPECT_TRUE(CheckPeerTerms(ours, neighbour).ok());
  const auto refused = [&](auto change, const char* names) {
    PeerTerms theirs = ours;
    change(&theirs);
    const absl::Status status = CheckPeerTerms(ours, theirs);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << names;
    EXPECT_NE(std::string(status.message()).find(names), std::string::npos) << status;
  };
  refused([](PeerTerms* t) { t->protocol_min = t->protocol_max = 4; }, "protocol");
  refused([](PeerTerms* t) { t->protocol_min = t->protocol_max = 1; }, "protocol");
  refused([](PeerTerms* t) { t->kv_class = "other"; }, "other");
  refused([](PeerTerms* t) { t->numerics_id = "other"; }, "other");
  refused([](PeerTerms* t) { t->transport = "grpc"; }, "grpc");
  refused([](PeerTerms* t) { t->shard = {.index = 0, .count = 2}; },
          "kv_shard: the peer has shard 0 of 2, this worker shard 0 of 1");
}

TEST(PeerTerms, ARouterNeedsAWholeWorkerThatSpeaksItsProtocol) {
  EXPECT_TRUE(CheckRoutable(PeerTerms{}).ok());
  EXPECT_TRUE(CheckRoutable({.protocol_min = 1, .protocol_max = 9}).ok());
  for (const int32_t other : {kProtocolMin - 1, kProtocolMax + 1}) {
    const absl::Status status = CheckRoutable({.protocol_min = other, .protocol_max = other});
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_NE(std::string(status.message()).find("protocol: the worker speaks"), std::string::npos);
  }
  const absl::Status status = CheckRoutable({.shard = {.index = 1, .count = 2}});
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_NE(std::string(status.message()).find("the worker has shard 1 of 2"), std::string::npos);
}

}  // namespace
}  // namespace tandem
