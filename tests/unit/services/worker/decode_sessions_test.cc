#include "services/worker/decode_sessions.h"

#include <gtest/gtest.h>

#include <variant>
#include <vector>

namespace tandem {
namespace {

// Its block would otherwise be kept for ever.
TEST(DecodeSessionsTest, AFrameForASessionThatIsGoneHasFailed) {
  CommandQueue commands(1);
  DecodeSessions sessions({}, /*calls=*/nullptr, /*prompts=*/nullptr, /*transport=*/nullptr,
                          &commands);
  sessions.SendFrame(/*session=*/7, FrameHeader(), /*block=*/0, /*send_id=*/5);
  const std::vector<EngineCommand> said = commands.Drain();
  ASSERT_EQ(said.size(), 1u);
  const auto* const sent = std::get_if<FrameSent>(&said[0]);
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(sent->send_id, 5u);
  EXPECT_FALSE(sent->ok);
}

}  // namespace
}  // namespace tandem
