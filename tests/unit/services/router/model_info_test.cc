#include "services/router/model_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "runtime/base/utf8.h"
#include "runtime/config/model_config.h"
#include "services/router/api_error.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kGpt2[] = R"({"model_type":"gpt2","n_embd":32,"n_head":2,"n_layer":1,)";

TEST(ReadModelInfoTest, AgreesWithWhatAWorkerReads) {
  // A missing context, one written as 2048.0, and one that GPT-2 does not read.
  for (const char* rest : {R"("vocab_size":1000})", R"("vocab_size":1e3,"n_positions":2048.0})",
                           R"("vocab_size":1000,"n_ctx":77})"}) {
    const TempFolder folder;
    folder.Write("config.json", kGpt2 + std::string(rest));
    const auto info = ReadModelInfo(folder.path(), "name");
    const auto config = ModelConfig::Load(folder.path());
    ASSERT_TRUE(info.ok() && config.ok()) << info.status() << config.status();
    EXPECT_EQ(info->vocab_size, config->vocab_size) << rest;
    EXPECT_EQ(info->max_model_tokens, config->max_positions) << rest;
  }
}

TEST(ReadModelInfoTest, DefaultsThatCannotBeServedDoNotStopTheRouter) {
  const TempFolder folder;
  folder.Write("config.json", kGpt2 + std::string(R"("vocab_size":1000,"eos_token_id":50256})"));
  folder.Write("generation_config.json",
               R"({"eos_token_id":[2,50256],"temperature":3,"repetition_penalty":1.1})");
  const auto info = ReadModelInfo(folder.path(), "");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_THAT(info->generation.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(info->generation.temperature, 1.0);
}

TEST(ReadModelInfoTest, BrokenFoldersAreNamed) {
  const TempFolder folder;
  EXPECT_TRUE(absl::IsNotFound(ReadModelInfo(folder.path(), "").status()));
  EXPECT_TRUE(absl::IsNotFound(ReadModelInfo(folder.path() + "/absent", "").status()));
  folder.Write("config.json", kGpt2 + std::string(R"("vocab_size":-1})"));
  EXPECT_THAT(std::string(ReadModelInfo(folder.path(), "").status().message()),
              HasSubstr("config.json: vocab_size is -1"));
  folder.Write("config.json", kGpt2 + std::string(R"("vocab_size":1000})"));
  folder.Write("generation_config.json", "{");
  EXPECT_THAT(std::string(ReadModelInfo(folder.path(), "").status().message()),
              HasSubstr("generation_config.json: not JSON"));
  std::filesystem::remove(folder.path() + "/generation_config.json");
  EXPECT_TRUE(ReadModelInfo(folder.path(), "").ok()) << "it may be missing";
  std::filesystem::create_directory(folder.path() + "/generation_config.json");
  EXPECT_THAT(std::string(ReadModelInfo(folder.path(), "").status().message()),
              HasSubstr("generation_config.json: not a regular file"));
}

TEST(ReadModelInfoTest, TheNameIsTheOneGivenOrTheFoldersOwn) {
  const TempFolder folder;
  folder.Write("config.json", kGpt2 + std::string(R"("vocab_size":1000})"));
  EXPECT_EQ(ReadModelInfo(folder.path(), "given")->served_name, "given");
  EXPECT_EQ(ReadModelInfo(folder.path(), "")->served_name,
            std::filesystem::path(folder.path()).filename().string());
  EXPECT_EQ(ReadModelInfo(folder.path() + "/.", "given")->folder,
            std::filesystem::canonical(folder.path()).string());
}

TEST(NotServedTest, TellsWhatIsServedAndALittleOfWhatWasAskedFor) {
  const ModelInfo model{.served_name = "mine"};
  const absl::Status status = NotServed(model, std::string(10'000, 'x') + "\xff", "the field");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(FieldOf(status), "the field");
  EXPECT_EQ(ApiCodeOf(status), "model_not_found");
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"mine\" is"));
  EXPECT_LT(status.message().size(), 400u);
  EXPECT_TRUE(IsValidUtf8(std::string(NotServed(model, "\xff", "").message())));
}

}  // namespace
}  // namespace tandem
