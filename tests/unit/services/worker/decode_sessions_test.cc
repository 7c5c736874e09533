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

// A worker knows nothing of the prompts and blocks of the life before it.
TEST(DecodeSessionsTest, WhoWantsAnotherLifeOfThisWorkerIsToldSo) {
  const PrefillHello ours{.worker = {.name = "prefill", .incarnation = 2}};
  PrefillHello theirs{.worker = {.name = "decode", .incarnation = 7}, .expected = ours.worker};
  EXPECT_TRUE(CheckHello(theirs, ours).ok());
  theirs.expected.incarnation = 1;
  EXPECT_TRUE(absl::IsUnavailable(CheckHello(theirs, ours)));
  theirs.expected = {.name = "another", .incarnation = 2};
  EXPECT_TRUE(absl::IsUnavailable(CheckHello(theirs, ours)));
  theirs.expected = {};
  EXPECT_TRUE(CheckHello(theirs, ours).ok()) << "the answer to a hello expects nobody";
}

}  // namespace
}  // namespace tandem
