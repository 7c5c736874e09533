#include "services/server/grpc_log.h"

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

TEST(GrpcLogTest, ItsLinesAreOurs) {
  grpc_init();  // Before, it logs nothing.
  TakeOverGrpcLog();
  testing::internal::CaptureStderr();
  gpr_log(GPR_ERROR, "a %s", "failure");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::HasSubstr("\"level\":\"warning\""));
  EXPECT_THAT(text, testing::HasSubstr("\"message\":\"a failure\""));
  grpc_shutdown();
}

}  // namespace
}  // namespace tandem
