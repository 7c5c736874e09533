#include "services/worker/prefill_peers.h"

#include <gtest/gtest.h>

#include <string>

#include "services/server/listen_socket.h"
#include "services/worker/read_window.h"
#include "tests/support/eventually.h"
#include "tests/unit/services/worker/kv_side.h"

namespace tandem {
namespace {

// Routers name them, as many as they like, and whoever answers would stay.
TEST(PrefillPeersTest, OfTooManyTheOneThatWasUsedLeastLatelyIsLost) {
  // It takes connections and says nothing.
  const auto silent = ListenSocket::Open("127.0.0.1:0");
  ASSERT_TRUE(silent.ok()) << silent.status();
  const auto side = MakeSide("grpc", 1);
  const FleetSecret no_secret;
  MemoryBudget budget(int64_t{256} << 20);
  CommandQueue commands(1);
  PrefillPeers peers({.worker = {.name = "self", .incarnation = 1}}, &no_secret, /*tls=*/nullptr,
                     /*vocab_size=*/100, /*liveness_scale=*/100, &budget, side->transport.get(),
                     &commands);
  const auto send = [&](size_t number) {
    peers.Send({.worker = {.name = std::to_string(number), .incarnation = 1},
                .address = "127.0.0.1:" + std::to_string(silent->port())},
               Grant{});
  };
  for (size_t i = 0; i < kMaxPrefillPeers; ++i) send(i);
  send(0);
  EXPECT_GE(budget.held_bytes(), static_cast<int64_t>(kMaxPrefillPeers) * ReadWindow::kBytes);
  EXPECT_EQ(commands.size(), 0u) << "there is room for all of them";
  send(kMaxPrefillPeers);
  ASSERT_TRUE(Eventually([&] { return commands.size() > 0; }));
  const std::vector<EngineCommand> said = commands.Drain();
  ASSERT_EQ(said.size(), 1u);
  const auto* const lost = std::get_if<PrefillLost>(&said[0]);
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->worker.name, "1") << lost->why;
}

}  // namespace
}  // namespace tandem
