#include "services/server/grpc_log.h"

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "grpc/health/v1/health.pb.h"

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

TEST(GrpcLogTest, ARefusedCertificateDoesNotReadLikeDamagedData) {
  grpc_init();
  TakeOverGrpcLog();
  testing::internal::CaptureStderr();
  gpr_log(GPR_ERROR, "Corruption detected.");
  gpr_log(GPR_ERROR, "error:0A000418:SSL routines::tlsv1 alert unknown ca");
  gpr_log(GPR_ERROR, "Decryption error: TSI_DATA_CORRUPTED");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_THAT(text, testing::HasSubstr("refuses the certificate of this process"));
  EXPECT_THAT(text, testing::HasSubstr("alert unknown ca"));
  grpc_shutdown();
}

TEST(GrpcLogTest, OfWhatMessagesMakeProtobufSayOnlyFewLinesAreWritten) {
  TakeOverGrpcLog();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) {
    grpc::health::v1::HealthCheckRequest request;
    EXPECT_FALSE(request.ParseFromString("\x0a\x02\xff\xfe"));
  }
  const std::string text = testing::internal::GetCapturedStderr();
  std::istringstream lines(text);
  int num_lines = 0;
  for (std::string line; std::getline(lines, line); ++num_lines) {
    EXPECT_TRUE(line.starts_with("{\"time\":")) << line;
    EXPECT_THAT(line, testing::HasSubstr("UTF-8"));
  }
  EXPECT_EQ(num_lines, 10) << text;
}

}  // namespace
}  // namespace tandem
