#include "runtime/base/fleet_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::HasSubstr;

const std::string kOld(32, 'o'), kNew(32, 'n');

FleetSecret Parsed(const std::string& text) { return *FleetSecret::Parse(text); }

TEST(FleetSecretTest, AProofIsGoodForItsWordsAndSecretAlone) {
  const FleetSecret secret = Parsed(kOld);
  const std::string proof = secret.Prove({"purpose", "nonce"});
  EXPECT_EQ(proof.size(), kProofBytes);
  EXPECT_EQ(secret.Check({"purpose", "nonce"}, proof), 0u);
  // Not for others, nor for the same letters in other words.
  EXPECT_FALSE(secret.Check({"purpose", "nonse"}, proof).has_value());
  EXPECT_FALSE(secret.Check({"purposen", "once"}, proof).has_value());
  EXPECT_FALSE(secret.Check({"purposenonce"}, proof).has_value());
  EXPECT_FALSE(secret.Check({"purpose", "nonce", ""}, proof).has_value());
  EXPECT_FALSE(secret.Check({"purpose", "nonce"}, proof.substr(1)).has_value());
  EXPECT_FALSE(secret.Check({"purpose", "nonce"}, "").has_value());
  EXPECT_FALSE(Parsed(kNew).Check({"purpose", "nonce"}, proof).has_value());
  EXPECT_FALSE(FleetSecret().Check({"purpose", "nonce"}, proof).has_value());
}

TEST(FleetSecretTest, TwoAreBelievedAndTheFirstProves) {
  const FleetSecret before = Parsed(kOld), first = Parsed(kOld + "\n" + kNew + "\n"),
                    second = Parsed(kNew + " " + kOld), after = Parsed(kNew);
  EXPECT_EQ(first.Prove({"x"}), before.Prove({"x"}));
  EXPECT_EQ(second.Prove({"x"}), after.Prove({"x"}));
  // Each step of a rotation understands the one before.
  EXPECT_EQ(first.Check({"x"}, before.Prove({"x"})), 0u);
  EXPECT_EQ(before.Check({"x"}, first.Prove({"x"})), 0u);
  EXPECT_EQ(second.Check({"x"}, first.Prove({"x"})), 1u);
  EXPECT_EQ(first.Check({"x"}, second.Prove({"x"})), 1u);
  EXPECT_EQ(after.Check({"x"}, second.Prove({"x"})), 0u);
  EXPECT_EQ(second.Prove({"x"}, 1), before.Prove({"x"}));
}

TEST(FleetSecretTest, ShortNoneAndThreeAreRefused) {
  for (const std::string& text :
       {std::string(), std::string(" \n"), std::string(31, 'x'), kOld + " " + std::string(5, 'x'),
        kOld + " " + kNew + " " + kOld}) {
    EXPECT_EQ(FleetSecret::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(FleetSecretTest, MadeOnesAreGoodAndDiffer) {
  std::set<std::string> made;
  for (int i = 0; i < 8; ++i) made.insert(FleetSecret::Make());
  EXPECT_EQ(made.size(), 8u);
  for (const std::string& text : made) EXPECT_TRUE(FleetSecret::Parse(text).ok()) << text;
}

TEST(FleetSecretTest, ComesFromTheFileElseTheEnvironmentElseIsNone) {
  const TempFolder folder;
  const std::string file = folder.Write("secret", kOld + "\n");
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  ASSERT_EQ(unsetenv(kFleetSecretVariable), 0);
  EXPECT_FALSE(FleetSecret::Read("")->configured());
  ASSERT_EQ(setenv(kFleetSecretVariable, kNew.c_str(), 1), 0);
  EXPECT_EQ(FleetSecret::Read("")->Prove({"x"}), Parsed(kNew).Prove({"x"}));
  EXPECT_EQ(FleetSecret::Read(file)->Prove({"x"}), Parsed(kOld).Prove({"x"}));
  EXPECT_TRUE(FleetSecret::Read(file)->configured());
  ASSERT_EQ(setenv(kFleetSecretVariable, "short", 1), 0);
  EXPECT_FALSE(FleetSecret::Read("").ok());
  ASSERT_EQ(unsetenv(kFleetSecretVariable), 0);
  EXPECT_EQ(FleetSecret::Read(folder.path() + "/none").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(FleetSecretTest, AFileThatOthersReadOrWriteIsRefused) {
  const TempFolder folder;
  const std::string file = folder.Write("secret", kOld);
  for (const mode_t mode : {0604, 0602, 0620, 0644, 0666}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    const absl::Status status = FleetSecret::Read(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << std::oct << mode;
    EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 600"));
  }
  for (const mode_t mode : {0400, 0600, 0440}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    EXPECT_TRUE(FleetSecret::Read(file).ok()) << std::oct << mode;
  }
}

}  // namespace
}  // namespace tandem
