#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "runtime/model/weight_source.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::HasSubstr;

std::string OneTensor(const std::string& name) {
  return SafetensorsText("{\"" + name + R"(":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})",
                         8);
}

std::string IndexOf(const std::string& file) { return R"({"weight_map":{"a":")" + file + "\"}}"; }

std::string IndexRefusal(const std::string& text) {
  const auto index = ParseSafetensorsIndex(text, "index");
  return index.ok() ? "accepted" : std::string(index.status().message());
}

TEST(CheckpointTest, FindsTensorsInShards) {
  const TempFolder folder;
  folder.Write("one.safetensors", OneTensor("a"));
  folder.Write("two.safetensors", OneTensor("b"));
  folder.Write("model.safetensors.index.json",
               R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const auto source = OpenCheckpoint(folder.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  const std::vector<int64_t> shape = {2, 1};
  EXPECT_TRUE((*source)->Tensor("a", shape).ok());
  EXPECT_TRUE((*source)->Tensor("b", shape).ok());
  EXPECT_THAT(std::string((*source)->Tensor("c", shape).status().message()),
              HasSubstr("tensor \"c\" is missing"));
  EXPECT_THAT(std::string((*source)->Tensor("a", std::vector<int64_t>{1, 2}).status().message()),
              HasSubstr("has shape [2, 1], config.json asks for [1, 2]"));
}

TEST(CheckpointTest, TheIndexDecidesWhichFileATensorIsReadFrom) {
  const TempFolder folder;
  folder.Write("one.safetensors", OneTensor("a"));
  // Last by name, it holds "a" too, in another shape and not for the index.
  folder.Write("two.safetensors",
               SafetensorsText(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                               R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                               8));
  folder.Write("model.safetensors.index.json",
               R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const auto source = OpenCheckpoint(folder.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_TRUE((*source)->Tensor("a", std::vector<int64_t>{2, 1}).ok());
  EXPECT_THAT((*source)->Names(), testing::ElementsAre("a", "b"));
}

TEST(CheckpointTest, RefusesAnIndexThatPointsToTheWrongPlace) {
  const TempFolder folder;
  EXPECT_THAT(std::string(OpenCheckpoint(folder.path()).status().message()),
              HasSubstr("holds neither model.safetensors nor"));
  folder.Write("one.safetensors", OneTensor("b"));
  folder.Write("model.safetensors.index.json", IndexOf("one.safetensors"));
  EXPECT_THAT(std::string(OpenCheckpoint(folder.path()).status().message()),
              HasSubstr("places tensor \"a\" here, but the file lacks it"));
  folder.Write("model.safetensors.index.json", IndexOf("absent.safetensors"));
  EXPECT_EQ(OpenCheckpoint(folder.path()).status().code(), absl::StatusCode::kNotFound);
}

TEST(CheckpointTest, RefusesShardNamesThatLeaveTheFolder) {
  EXPECT_EQ(IndexRefusal(IndexOf("model-1.safetensors")), "accepted");
  for (const char* name :
       {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "",
        ".hidden.safetensors", "a\\\\b.safetensors", "passwd", "x\\u0000.safetensors"}) {
    EXPECT_THAT(IndexRefusal(IndexOf(name)), HasSubstr("want the name of a *.safetensors file"))
        << name;
  }
}

TEST(CheckpointTest, RefusesBrokenIndexes) {
  EXPECT_THAT(IndexRefusal("{}"), HasSubstr("weight_map is missing or empty"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":{}})"), HasSubstr("missing or empty"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":[]})"), HasSubstr("want an object"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":{"a":1}})"), HasSubstr("holds 1"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"),
              HasSubstr("appears twice"));
  EXPECT_THAT(IndexRefusal("{"), HasSubstr("not JSON"));
  std::string many = R"({"weight_map":{)";
  for (int i = 0; i < 1025; ++i) {
    if (i > 0) many += ",";
    many += "\"t" + std::to_string(i) + "\":\"f" + std::to_string(i) + ".safetensors\"";
  }
  EXPECT_THAT(IndexRefusal(many + "}}"), HasSubstr("names 1025 files, at most 1024"));
}

TEST(CheckpointTest, IdentityChangesWithTheIndexAlone) {
  const TempFolder folder;
  folder.Write("one.safetensors", OneTensor("a"));
  folder.Write("model.safetensors.index.json", IndexOf("one.safetensors"));
  const auto first = OpenCheckpoint(folder.path());
  const auto same = OpenCheckpoint(folder.path());
  folder.Write("model.safetensors.index.json", IndexOf("one.safetensors") + " ");
  const auto touched = OpenCheckpoint(folder.path());
  ASSERT_TRUE(first.ok() && same.ok() && touched.ok());
  EXPECT_EQ((*first)->Identity(), (*same)->Identity());
  EXPECT_NE((*first)->Identity(), (*touched)->Identity());
}

// Weights are packed again when a checkpoint has changed, and by this alone they are known to have.
TEST(CheckpointTest, IdentityChangesWithEachShardHoweverLittleItsFileShows) {
  namespace fs = std::filesystem;
  const TempFolder folder;
  folder.Write("one.safetensors", OneTensor("a"));
  folder.Write("two.safetensors", OneTensor("b"));
  folder.Write("model.safetensors.index.json",
               R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  std::set<std::string> identities;
  const auto add_identity = [&] {
    const auto source = OpenCheckpoint(folder.path());
    ASSERT_TRUE(source.ok()) << source.status();
    identities.insert((*source)->Identity());
  };
  add_identity();
  for (const char* name : {"/one.safetensors", "/two.safetensors"}) {
    const std::string path = folder.path() + name;
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::milliseconds(1));
    add_identity();
    // Another file of the same size and time.
    fs::copy_file(path, path + ".new");
    fs::last_write_time(path + ".new", fs::last_write_time(path));
    fs::rename(path + ".new", path);
    add_identity();
  }
  EXPECT_EQ(identities.size(), 5u);
}

TEST(CheckpointTest, IdentityChangesWithTheFile) {
  const TempFolder folder;
  folder.Write("model.safetensors", OneTensor("a"));
  const auto first = OpenCheckpoint(folder.path());
  ASSERT_TRUE(first.ok());
  const auto same = OpenCheckpoint(folder.path());
  ASSERT_TRUE(same.ok());
  EXPECT_EQ((*first)->Identity(), (*same)->Identity());
  const auto path = folder.path() + "/model.safetensors";
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  const auto touched = OpenCheckpoint(folder.path());
  ASSERT_TRUE(touched.ok());
  EXPECT_NE((*first)->Identity(), (*touched)->Identity());
}

}  // namespace
}  // namespace tandem
