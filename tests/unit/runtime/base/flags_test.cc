#include "runtime/base/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Options {
  std::string http = "127.0.0.1:8000";
  int32_t prefill = 1;
  double scale = 1;
  bool verbose = false;
  ByteSize memory;
  std::string transport = "ucx";
};

FlagSet Declare(Options* options) {
  FlagSet flags("program DIR [flags]", "Does things.");
  flags.Add("http", &options->http, "ADDR", "where to listen");
  flags.Add("prefill", &options->prefill, "N", "workers", 0, 64);
  flags.Add("scale", &options->scale, "X", "of times", 0.1, 100);
  flags.Add("verbose", &options->verbose, "says more");
  flags.Add("memory", &options->memory, "BYTES", "of the pool");
  flags.AddChoice("transport", &options->transport, {"ucx", "grpc"}, "moves blocks");
  return flags;
}

TEST(FlagsTest, ReadsBothSpellingsAndPositionalArguments) {
  Options options;
  FlagSet flags = Declare(&options);
  const auto rest = flags.Parse({"model", "--http=:1", "--prefill", "3", "--verbose", "--scale=2.5",
                                 "--memory", "1.5GiB", "--transport=grpc", "--", "--rest"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(*rest, ElementsAre("model", "--rest"));
  EXPECT_EQ(options.http, ":1");
  EXPECT_EQ(options.prefill, 3);
  EXPECT_EQ(options.scale, 2.5);
  EXPECT_TRUE(options.verbose);
  EXPECT_EQ(options.memory.bytes, 1610612736);
  EXPECT_EQ(options.transport, "grpc");
  EXPECT_TRUE(flags.WasSet("prefill"));
}

TEST(FlagsTest, KeepsDefaultsAndSaysSo) {
  Options options;
  FlagSet flags = Declare(&options);
  ASSERT_TRUE(flags.Parse({"--help"}).ok());
  EXPECT_TRUE(flags.help_requested());
  EXPECT_FALSE(flags.WasSet("http"));
  EXPECT_THAT(flags.Help(), HasSubstr("where to listen (default 127.0.0.1:8000)"));
  EXPECT_THAT(flags.Help(), HasSubstr("--transport ucx|grpc"));
}

TEST(FlagsTest, OfSeveralValuesTheLaterSourceCounts) {
  Options options;
  FlagSet flags = Declare(&options);
  ASSERT_TRUE(flags.Parse({"--prefill=3"}).ok());
  EXPECT_TRUE(flags.Set("prefill", "nonsense", FlagSource::kEnvironment).ok()) << "not looked at";
  EXPECT_EQ(options.prefill, 3);
  EXPECT_TRUE(flags.Set("scale", "2", FlagSource::kEnvironment).ok());
  EXPECT_TRUE(flags.Set("scale", "3", FlagSource::kFile).ok());
  EXPECT_EQ(options.scale, 2);
  EXPECT_TRUE(absl::IsNotFound(flags.Set("nope", "1", FlagSource::kFile)));
  const std::vector<FlagSet::Value> values = flags.Values();
  ASSERT_EQ(values.size(), 6u);
  EXPECT_EQ(values[1].text, "3");
  EXPECT_EQ(values[1].source, FlagSource::kCommandLine);
  EXPECT_EQ(values[4].name, "memory");
  EXPECT_EQ(values[4].text, "0") << "which may be read again";
  EXPECT_EQ(values[4].source, FlagSource::kDefault);
}

TEST(FlagsTest, RefusesWhatIsNotAllowedNamingFlagAndValue) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--nope"}, "unknown flag --nope"},
      {{"--prefill"}, "--prefill wants a value N"},
      {{"--prefill", "65"}, "--prefill: want a number from 0 to 64, got \"65\""},
      {{"--prefill", "99999999999"}, "from 0 to 64"},
      {{"--prefill", "-1"}, "from 0 to 64"},
      {{"--prefill", "2x"}, "got \"2x\""},
      {{"--scale", "nan"}, "--scale: want a number"},
      {{"--verbose=maybe"}, "want true or false"},
      {{"--memory", "many"}, "want bytes such as"},
      {{"--memory", "-1GiB"}, "want bytes such as"},
      {{"--memory", "-0"}, "want bytes such as"},
      {{"--memory", "4194304TiB"}, "less than 4194304TiB, got"},
      {{"--transport", "carrier-pigeon"}, "want one of ucx|grpc"},
  };
  for (const auto& [arguments, message] : cases) {
    Options options;
    FlagSet flags = Declare(&options);
    const auto rest = flags.Parse(arguments);
    ASSERT_FALSE(rest.ok()) << arguments[0];
    EXPECT_EQ(rest.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(rest.status().message()), HasSubstr(message));
  }
}

TEST(FlagsTest, WritesByteSizesAsPeopleReadThem) {
  EXPECT_EQ(FormatByteSize(999), "999 B");
  EXPECT_EQ(FormatByteSize(1536), "1.50 KiB");
  EXPECT_EQ(FormatByteSize(int64_t{4} << 30), "4.00 GiB");
}

TEST(FlagsTest, WhatWasAskedForIsWrittenExactly) {
  EXPECT_EQ(ToString(ByteSize{32 << 20}), "32.00 MiB");
  EXPECT_EQ(ToString(ByteSize{(32 << 20) - 1}), "33554431 B");
  EXPECT_EQ(ToString(ByteSize{3ll << 29}), "1.50 GiB");
  EXPECT_EQ(ToString(ByteSize{7}), "7 B");
}

TEST(FlagsTest, AnEmptyFileIsNotNoFile) {
  std::string file, name = "n";
  FlagSet flags("program", "");
  flags.Add("keys", &file, "FILE", "whose keys");
  flags.Add("name", &name, "NAME", "who");
  EXPECT_TRUE(flags.Values()[0].none);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--keys="}, {"--keys", ""}}) {
    EXPECT_THAT(std::string(flags.Parse(arguments).status().message()),
                HasSubstr("--keys: want a file, got \"\""));
  }
  EXPECT_FALSE(flags.Set("keys", "", FlagSource::kEnvironment).ok());
  EXPECT_TRUE(flags.Parse({"--keys=k", "--name="}).ok());
  EXPECT_EQ(file, "k");
  EXPECT_EQ(name, "");
  EXPECT_FALSE(flags.Values()[0].none);
  EXPECT_FALSE(flags.Values()[1].none);
}

TEST(FlagsTest, WhatNobodyHasSetMayBeCompleted) {
  Options options;
  FlagSet flags = Declare(&options);
  ASSERT_TRUE(flags.Parse({"--scale=2"}).ok());
  ASSERT_TRUE(flags.Set("prefill", "0", FlagSource::kDefault).ok());
  ASSERT_TRUE(flags.Set("scale", "3", FlagSource::kDefault).ok());
  EXPECT_EQ(options.prefill, 0);
  EXPECT_EQ(options.scale, 2) << "somebody has";
  EXPECT_FALSE(flags.WasSet("prefill"));
  EXPECT_EQ(flags.Values()[1].name, "prefill");
  EXPECT_EQ(flags.Values()[1].text, "0");
}

}  // namespace
}  // namespace tandem
