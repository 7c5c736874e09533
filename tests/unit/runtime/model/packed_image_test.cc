#include "runtime/model/packed_image.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/crc32c.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

constexpr size_t kPayloadBytes = 100'000;

PackedImageOptions Options(const TempFolder& folder, uint8_t key = 1) {
  PackedImageOptions options{.cache_dir = folder.path() + "/cache/deep",
                             .payload_bytes = kPayloadBytes};
  options.key.fill(key);
  return options;
}

absl::StatusOr<Sha256Digest> FillWithPattern(std::span<std::byte> payload) {
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7);
  return Sha256Of("pattern");
}

absl::StatusOr<Sha256Digest> MustNotFill(std::span<std::byte>) {
  return absl::InternalError("packed again");
}

void ExpectPattern(const PackedImage& image) {
  ASSERT_EQ(image.payload().size(), kPayloadBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(image.payload().data()) % 64, 0u);
  for (size_t i = 0; i < kPayloadBytes; ++i) {
    ASSERT_EQ(image.payload()[i], static_cast<std::byte>(i * 7)) << i;
  }
  EXPECT_EQ(image.digest(), Sha256Of("pattern"));
}

TEST(PackedImageTest, SecondOpenMapsWhatTheFirstPacked) {
  const TempFolder folder;
  const auto made = PackedImage::Open(Options(folder), FillWithPattern);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_FALSE((*made)->from_cache());
  ExpectPattern(**made);
  const auto mapped = PackedImage::Open(Options(folder), MustNotFill);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_TRUE((*mapped)->from_cache());
  ExpectPattern(**mapped);
}

TEST(PackedImageTest, AFolderSaysWhatItHasForAnImage) {
  const TempFolder folder;
  const std::string cache = Options(folder).cache_dir;
  EXPECT_EQ(FindCachePlace("", kPayloadBytes), CachePlace::kNone);
  EXPECT_EQ(FindCachePlace(cache, kPayloadBytes), CachePlace::kRoom);
  EXPECT_EQ(FindCachePlace(cache, size_t{1} << 60), CachePlace::kNone) << "no disk has room";
  ASSERT_TRUE(PackedImage::Open(Options(folder), FillWithPattern).ok());
  EXPECT_EQ(FindCachePlace(cache, kPayloadBytes), CachePlace::kImage);
  EXPECT_EQ(FindCachePlace(cache, 2 * kPayloadBytes), CachePlace::kRoom) << "a smaller model's";
  const std::string temporary = cache + "/other.packed" + kTemporarySuffix;
  std::ofstream(temporary).put('\0');
  EXPECT_EQ(FindCachePlace(cache, size_t{1} << 60), CachePlace::kRoom) << "somebody makes one";
  ASSERT_EQ(::chmod(cache.c_str(), 0777), 0);
  EXPECT_EQ(FindCachePlace(cache, kPayloadBytes), CachePlace::kNone) << "anybody's folder";
}

TEST(PackedImageTest, AnotherKeyIsPackedAfresh) {
  const TempFolder folder;
  ASSERT_TRUE(PackedImage::Open(Options(folder, 1), FillWithPattern).ok());
  const auto other = PackedImage::Open(Options(folder, 2), MustNotFill);
  EXPECT_EQ(other.status().message(), "packed again");
}

TEST(PackedImageTest, WithoutACacheFolderItLivesInMemory) {
  const TempFolder folder;
  PackedImageOptions options = Options(folder);
  options.cache_dir = "";
  const auto image = PackedImage::Open(options, FillWithPattern);
  ASSERT_TRUE(image.ok());
  EXPECT_EQ((*image)->path(), "");
  ExpectPattern(**image);
}

TEST(PackedImageTest, AnUnusableCacheFolderIsDoneWithout) {
  const TempFolder folder;
  PackedImageOptions options = Options(folder);
  options.cache_dir = folder.Write("a_file", "in the way") + "/cache";
  const auto image = PackedImage::Open(options, FillWithPattern);
  ASSERT_TRUE(image.ok()) << image.status().message();
  ExpectPattern(**image);
}

TEST(PackedImageTest, AFailedFillLeavesNothingBehind) {
  const TempFolder folder;
  EXPECT_EQ(PackedImage::Open(Options(folder), MustNotFill).status().code(),
            absl::StatusCode::kInternal);
  for (const auto& entry : std::filesystem::directory_iterator(Options(folder).cache_dir)) {
    EXPECT_EQ(entry.path().extension(), ".lock") << entry.path();
  }
  EXPECT_TRUE(PackedImage::Open(Options(folder), FillWithPattern).ok());
}

TEST(PackedImageTest, OfManyWorkersStartingAtOnceOnePacks) {
  const TempFolder folder;
  std::atomic<int> fills{0};
  std::vector<std::thread> workers;
  std::vector<std::unique_ptr<PackedImage>> images(6);
  for (size_t i = 0; i < images.size(); ++i) {
    workers.emplace_back([&, i] {
      auto image = PackedImage::Open(Options(folder), [&](std::span<std::byte> payload) {
        fills.fetch_add(1);
        return FillWithPattern(payload);
      });
      if (image.ok()) images[i] = *std::move(image);
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(fills.load(), 1);
  for (const auto& image : images) {
    ASSERT_NE(image, nullptr);
    ExpectPattern(*image);
  }
}

TEST(PackedImageTest, ADamagedPayloadIsReportedAndTheFileRemoved) {
  const TempFolder folder;
  std::string path;
  {
    const auto made = PackedImage::Open(Options(folder), FillWithPattern);
    ASSERT_TRUE(made.ok());
    path = (*made)->path();
  }
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 54'321);
    file.put('\x55');
  }
  absl::Status reported;
  PackedImageOptions options = Options(folder);
  options.on_corrupt = [&](absl::Status status) { reported = std::move(status); };
  const auto image = PackedImage::Open(options, MustNotFill);
  ASSERT_TRUE(image.ok());
  (*image)->WaitForCheck();
  EXPECT_EQ(reported.code(), absl::StatusCode::kDataLoss) << reported.message();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(PackedImage::Open(Options(folder), FillWithPattern).ok());
}

TEST(PackedImageTest, AnIntactPayloadIsNotReported) {
  const TempFolder folder;
  ASSERT_TRUE(PackedImage::Open(Options(folder), FillWithPattern).ok());
  PackedImageOptions options = Options(folder);
  bool reported = false;
  options.on_corrupt = [&](absl::Status) { reported = true; };
  const auto image = PackedImage::Open(options, MustNotFill);
  ASSERT_TRUE(image.ok());
  (*image)->WaitForCheck();
  EXPECT_FALSE(reported);
}

// The images that lie in the cache.
int NumImages(const TempFolder& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(Options(folder).cache_dir)) {
    count += entry.path().extension() != ".lock";
  }
  return count;
}

// Packs for another state of checkpoint files and gives the image up.
std::string Pack(const TempFolder& folder, uint8_t key, const std::string& identity) {
  PackedImageOptions options = Options(folder, key);
  options.identity = identity;
  const auto image = PackedImage::Open(options, FillWithPattern);
  TANDEM_CHECK(image.ok()) << image.status().message();
  return (*image)->path();
}

TEST(PackedImageTest, ANewImageReplacesThoseOfOlderFiles) {
  const TempFolder folder;
  Pack(folder, 1, "/a|b/x|10|1.0|7|1\n");
  Pack(folder, 2, "/a|b/x|10|1.0|7|1\n/y|5|1.0|8|1\n");
  Pack(folder, 3, "/z|10|1.0|9|1\n");
  EXPECT_EQ(NumImages(folder), 3);  // Nothing contradicts another.
  Pack(folder, 4, "/a|b/x|11|2.0|7|1\n");
  EXPECT_EQ(NumImages(folder), 2);
  const auto other = PackedImage::Open({.cache_dir = Options(folder).cache_dir,
                                        .key = Options(folder, 3).key,
                                        .identity = "/z|10|1.0|9|1\n",
                                        .payload_bytes = kPayloadBytes},
                                       MustNotFill);
  EXPECT_TRUE(other.ok()) << other.status().message();
}

TEST(PackedImageTest, WhatIsMadeOfNoFileReplacesNothing) {
  const TempFolder folder;
  Pack(folder, 1, "dummy 1 LlamaForCausalLM bf16");
  Pack(folder, 2, "dummy 1 Qwen3ForCausalLM bf16");
  Pack(folder, 3, "dummy 1 LlamaForCausalLM f32");
  EXPECT_EQ(NumImages(folder), 3);
}

TEST(PackedImageTest, ANewImageReplacesThoseThatNobodyUses) {
  const TempFolder folder;
  const auto make_old = [](const std::string& path) {
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(24 * 31));
  };
  const std::string unused = Pack(folder, 1, "/a|1\n");
  const std::string opened_since = Pack(folder, 2, "/b|1\n");
  const std::string mapped = Pack(folder, 3, "/c|1\n");
  make_old(unused);
  make_old(opened_since);
  Pack(folder, 2, "/b|1\n");
  PackedImageOptions options = Options(folder, 3);
  options.identity = "/c|1\n";
  const auto image = PackedImage::Open(options, MustNotFill);
  ASSERT_TRUE(image.ok());
  make_old(mapped);
  Pack(folder, 4, "/d|1\n");
  EXPECT_FALSE(std::filesystem::exists(unused));
  EXPECT_TRUE(std::filesystem::exists(opened_since));
  EXPECT_TRUE(std::filesystem::exists(mapped));
}

TEST(PackedImageTest, HalfWrittenFilesGoUnlessTheirWriterLives) {
  const TempFolder folder;
  const std::string first = Pack(folder, 1, "");
  std::ofstream(first + ".tmp") << "of a dead process";
  PackedImageOptions options = Options(folder, 2);
  ASSERT_TRUE(PackedImage::Open(options, [&](std::span<std::byte> payload) {
                Pack(folder, 3, "");  // Cleans up while 2 is being written.
                return FillWithPattern(payload);
              }).ok());
  EXPECT_FALSE(std::filesystem::exists(first + ".tmp"));
  EXPECT_EQ(NumImages(folder), 3);
}

TEST(PackedImageTest, ABrokenHeaderOrLengthIsPackedAfresh) {
  for (const int64_t damage : {0, 9, 20, 40, 70, 90, -1}) {
    const TempFolder folder;
    std::string path;
    {
      const auto made = PackedImage::Open(Options(folder), FillWithPattern);
      ASSERT_TRUE(made.ok());
      path = (*made)->path();
    }
    if (damage < 0) {
      std::filesystem::resize_file(path, 5000);
    } else {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(damage);
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(damage);
      file.put(byte);
    }
    const auto image = PackedImage::Open(Options(folder), FillWithPattern);
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_FALSE((*image)->from_cache()) << "damage at " << damage;
    ExpectPattern(**image);
  }
}

// As a release would leave it that lays weights out in another way.
TEST(PackedImageTest, AnImageOfAnotherVersionIsPackedAfresh) {
  const TempFolder folder;
  const std::string path = Pack(folder, 1, "");
  PackedHeader header;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  ++header.version;
  header.header_checksum = Crc32c(&header, offsetof(PackedHeader, header_checksum));
  file.seekp(0);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file.close();
  const auto image = PackedImage::Open(Options(folder), FillWithPattern);
  ASSERT_TRUE(image.ok()) << image.status().message();
  EXPECT_FALSE((*image)->from_cache());
}

TEST(DefaultCacheDirTest, IsWhereTheUserKeepsCachesIfThatIsAnAbsolutePath) {
  const auto with = [](const char* cache, const char* home) {
    const std::pair<const char*, const char*> variables[] = {{"XDG_CACHE_HOME", cache},
                                                             {"HOME", home}};
    std::vector<std::optional<std::string>> before;
    for (const auto& [name, value] : variables) {
      const char* const was = std::getenv(name);
      before.push_back(was == nullptr ? std::nullopt : std::optional<std::string>(was));
      value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    }
    std::string folder = DefaultCacheDir();
    for (size_t i = 0; i < before.size(); ++i) {
      before[i] ? setenv(variables[i].first, before[i]->c_str(), 1) : unsetenv(variables[i].first);
    }
    return folder;
  };
  EXPECT_EQ(with("/caches", "/home/me"), "/caches/tandem");
  EXPECT_EQ(with(nullptr, "/home/me"), "/home/me/.cache/tandem");
  EXPECT_EQ(with("", "/home/me"), "/home/me/.cache/tandem");
  EXPECT_EQ(with("caches", "/home/me"), "/home/me/.cache/tandem");
  EXPECT_EQ(with(nullptr, "me"), "");
  EXPECT_EQ(with(nullptr, nullptr), "");
}

// Whoever may write there could serve other weights under this model's name.
TEST(PackedImageTest, AFolderThatOthersMayWriteIsNotUsed) {
  const TempFolder folder;
  Pack(folder, 1, "");
  const std::string cache = Options(folder).cache_dir;
  const auto expect_packed_again = [&](const char* what) {
    int fills = 0;
    const auto image = PackedImage::Open(Options(folder), [&](std::span<std::byte> payload) {
      ++fills;
      return FillWithPattern(payload);
    });
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(fills, 1) << what;
    EXPECT_EQ((*image)->path(), "") << what;
    ExpectPattern(**image);
  };
  for (const mode_t mode : {0770, 0777, 0720, 0702}) {
    ASSERT_EQ(chmod(cache.c_str(), mode), 0);
    expect_packed_again("writable by others");
  }
  ASSERT_EQ(chmod(cache.c_str(), 0755), 0);
  EXPECT_TRUE(PackedImage::Open(Options(folder), MustNotFill).ok());
  if (geteuid() == 0) {  // Root with a user's HOME.
    ASSERT_EQ(chown(cache.c_str(), 12345, 12345), 0);
    expect_packed_again("another user's");
    ASSERT_EQ(chown(cache.c_str(), 0, 0), 0);
  }
  std::filesystem::rename(cache, folder.path() + "/moved");
  std::filesystem::create_directory_symlink(folder.path() + "/moved", cache);
  expect_packed_again("a link");
}

TEST(PackedImageTest, AFileThatOthersMayWriteIsPackedAgain) {
  const TempFolder folder;
  const std::string path = Pack(folder, 1, "");
  const auto expect_packed_again = [&](const char* what) {
    {
      const auto again = PackedImage::Open(Options(folder), FillWithPattern);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_FALSE((*again)->from_cache()) << what;
    }
    const auto mapped = PackedImage::Open(Options(folder), MustNotFill);
    ASSERT_TRUE(mapped.ok()) << what << ": " << mapped.status();
    EXPECT_TRUE((*mapped)->from_cache()) << what;
  };
  ASSERT_EQ(chmod(path.c_str(), 0664), 0);
  expect_packed_again("writable by a group");
  ASSERT_EQ(chmod(path.c_str(), 0606), 0);
  expect_packed_again("writable by all");
  if (geteuid() == 0) {
    ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
    expect_packed_again("another user's");
  }
  std::filesystem::rename(path, path + ".planted");
  std::filesystem::create_symlink(path + ".planted", path);
  expect_packed_again("a link");
  EXPECT_TRUE(std::filesystem::exists(path + ".planted"));
}

TEST(PackedImageTest, WhatItMakesIsThisUsersAloneWhateverTheUmask) {
  const TempFolder folder;
  const mode_t before = umask(0);
  const std::string path = Pack(folder, 1, "");
  umask(before);
  struct stat info;
  for (const std::string& made : {path, Options(folder).cache_dir}) {
    ASSERT_EQ(stat(made.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077, 0u) << made;
  }
  EXPECT_TRUE(PackedImage::Open(Options(folder), MustNotFill).ok());
}

}  // namespace
}  // namespace tandem
