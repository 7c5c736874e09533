#include "services/server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;

class ApiKeysTest : public testing::Test {
 protected:
  std::string Write(const std::string& text) { return folder_.Write("keys", text); }
  bool Admits(const std::string& authorization) {
    const absl::Status status = keys_->Check(authorization);
    EXPECT_TRUE(status.ok() || absl::IsUnauthenticated(status)) << status;
    return status.ok();
  }

  const TempFolder folder_;
  const std::string ann_ = MakeApiKey(), bob_ = MakeApiKey();
  std::unique_ptr<ApiKeys> keys_;
};

TEST_F(ApiKeysTest, WhoHasAKeyIsAdmitted) {
  keys_ = *ApiKeys::Open(
      Write("# ours\n" + ApiKeyLine("ann", ann_) + "\r\n\n" + ApiKeyLine("bob", bob_) + " # two"));
  EXPECT_TRUE(Admits("Bearer " + ann_));
  EXPECT_TRUE(Admits("bearer " + bob_));
  const std::string hash = ApiKeyLine("", ann_).substr(1);
  for (const std::string& wrong :
       {std::string(), std::string("Bearer"), std::string("Bearer "), ann_, "Basic " + ann_,
        "Bearer  " + ann_, "Bearer " + ann_ + " ", "Bearer " + ann_.substr(1),
        "Bearer " + ann_ + ann_, "Bearer " + hash, std::string("Bearer ann"),
        "Bearer " + MakeApiKey(), std::string(100'000, 'x')}) {
    EXPECT_FALSE(Admits(wrong)) << wrong.substr(0, 100);
  }
}

// Whoever has no key would have an empty one.
TEST_F(ApiKeysTest, AnEmptyKeyIsAKeyAndNoneIsNot) {
  keys_ = *ApiKeys::Open(Write(ApiKeyLine("nobody", "")));
  EXPECT_TRUE(Admits("Bearer "));
  for (const char* const none : {"", "Bearer", "Basic ", "Basic dTpw"}) {
    EXPECT_FALSE(Admits(none)) << none;
  }
}

TEST_F(ApiKeysTest, ALineMayBeThereAsItWasPrinted) {
  keys_ = *ApiKeys::Open(
      Write("line: " + ApiKeyLine("ann", ann_) + "\n" + ApiKeyLine("tandem-bob", bob_) + "\n"));
  EXPECT_TRUE(Admits("Bearer " + ann_));
  EXPECT_TRUE(Admits("Bearer " + bob_)) << "a name that begins as keys do";
}

TEST_F(ApiKeysTest, ChangesOfTheFileHold) {
  keys_ = *ApiKeys::Open(Write(ApiKeyLine("ann", ann_)));
  EXPECT_FALSE(Admits("Bearer " + bob_));
  Write(ApiKeyLine("ann", ann_) + "\n" + ApiKeyLine("bob", bob_));
  keys_->Look();
  EXPECT_TRUE(Admits("Bearer " + ann_));
  EXPECT_TRUE(Admits("Bearer " + bob_));
  Write(ApiKeyLine("bob", bob_));
  keys_->Look();
  EXPECT_FALSE(Admits("Bearer " + ann_)) << "it was taken out";
  EXPECT_TRUE(Admits("Bearer " + bob_));
  const auto stay = [this](const std::string& why) {
    testing::internal::CaptureStderr();
    keys_->Look();
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the keys stay as they are"));
    EXPECT_TRUE(Admits("Bearer " + bob_)) << why;
  };
  for (const char* const broken : {"", "ann", "ann 0123"}) {
    Write(broken);
    stay(broken);
  }
  std::filesystem::remove(folder_.path() + "/keys");
  stay("there is no file");
}

TEST_F(ApiKeysTest, TheFileIsFollowedFromTheBeginning) {
  keys_ = *ApiKeys::Open(Write(ApiKeyLine("ann", ann_)), std::chrono::milliseconds(1));
  Write(ApiKeyLine("bob", bob_));
  EXPECT_TRUE(Eventually([this] { return Admits("Bearer " + bob_); }));
  EXPECT_FALSE(Admits("Bearer " + ann_));
}

TEST_F(ApiKeysTest, WhatIsNoListOfKeysIsRefusedWithItsLine) {
  const auto why = [this](const std::string& text) {
    const auto opened = ApiKeys::Open(Write(text));
    EXPECT_TRUE(absl::IsInvalidArgument(opened.status())) << opened.status();
    return std::string(opened.status().message());
  };
  EXPECT_THAT(why(""), HasSubstr("no key is in it"));
  EXPECT_THAT(why("# nobody\n"), HasSubstr("no key is in it"));
  EXPECT_THAT(why(ApiKeyLine("ann", ann_) + "\n" + bob_), HasSubstr("line 2"));
  EXPECT_THAT(why("ann " + std::string(64, 'g')), HasSubstr("line 1: want a name"));
  EXPECT_THAT(why("ann " + std::string(64, 'A')), HasSubstr("line 1: want a name"));
  EXPECT_THAT(why("ann " + ann_), HasSubstr("line 1: a key itself"));
  EXPECT_THAT(why("key:  " + ann_ + "\nline: " + ApiKeyLine("ann", ann_)),
              HasSubstr("line 1: a key itself"));
  EXPECT_THAT(why("ann " + ann_), Not(HasSubstr(ann_.substr(0, 12)))) << "in no log";
  EXPECT_THAT(why("name: " + ApiKeyLine("ann", ann_)), HasSubstr("line 1"));
  EXPECT_THAT(why(ApiKeyLine("ann", ann_) + " more"), HasSubstr("line 1"));
  EXPECT_THAT(std::string(ApiKeys::Open("/nonexistent/keys").status().message()),
              HasSubstr("/nonexistent/keys"));
}

}  // namespace
}  // namespace tandem
