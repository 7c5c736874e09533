#include "services/http/http_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace tandem {
namespace {

TEST(HttpErrorTest, ClientsTellErrorsApartByTheirType) {
  for (const auto& [status, type] :
       {std::pair(400, "invalid_request_error"), std::pair(401, "authentication_error"),
        std::pair(404, "not_found_error"), std::pair(413, "invalid_request_error"),
        std::pair(429, "rate_limit_error"), std::pair(499, "cancelled_error"),
        std::pair(500, "server_error"), std::pair(503, "service_unavailable_error"),
        std::pair(504, "timeout_error")}) {
    EXPECT_THAT(ErrorJson(status, "why"),
                testing::HasSubstr(std::string("\"type\":\"") + type + "\""))
        << status;
  }
}

TEST(HttpErrorTest, WhatIsEmptyIsNullAndNothingEndsAStringEarly) {
  EXPECT_EQ(ErrorJson(400, "a \"b\"\n", "", "n"),
            R"({"error":{"message":"a \"b\"\n","type":"invalid_request_error",)"
            R"("param":"n","code":null}})");
  EXPECT_EQ(ErrorJson(404, "", "model_not_found"),
            R"({"error":{"message":"","type":"not_found_error",)"
            R"("param":null,"code":"model_not_found"}})");
}

TEST(HttpErrorTest, APathIsRepeatedShortAndPrintable) {
  EXPECT_EQ(NoSuchRoute("/v1/chat"), "no such route: \"/v1/chat\"");
  EXPECT_EQ(NoSuchRoute("/a b\t\xC3\xA4~"), "no such route: \"/a b???~\"");
  EXPECT_EQ(NoSuchRoute(std::string(101, 'a')), "no such route: \"" + std::string(100, 'a') + "\"");
}

}  // namespace
}  // namespace tandem
