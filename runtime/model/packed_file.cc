#include "runtime/model/packed_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <string_view>

#include "absl/strings/str_split.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/log.h"
#include "runtime/base/private_file.h"

namespace tandem {
namespace {

constexpr char kMagic[8] = {'T', 'N', 'D', 'M', 'P', 'A', 'C', 'K'};
constexpr uint32_t kVersion = 2;
constexpr auto kUnusedLimit = std::chrono::hours(24 * 30);
constexpr size_t kMaxIdentityBytes = size_t{16} << 20;

uint32_t HeaderChecksum(const PackedHeader& header) {
  return Crc32c(&header, offsetof(PackedHeader, header_checksum));
}

// A line of an identity that names a file is "path|size|time|inode|device"; of another, nothing.
std::string PathOf(std::string_view line) {
  for (int field = 0; field < 4; ++field) {
    const size_t end = line.rfind('|');
    if (end == line.npos) return "";
    line = line.substr(0, end);
  }
  return std::string(line);
}

std::set<std::string> LinesOf(const std::string& identity) {
  return absl::StrSplit(identity, '\n', absl::SkipEmpty());
}

// Whether the image was made of one of the files that `identity` names, as it no longer is.
bool IsOfOlderFiles(int fd, const std::string& identity) {
  const std::optional<PackedHeader> header = PackedHeader::Read(fd);
  if (!header || header->identity_bytes > kMaxIdentityBytes) return false;
  std::string theirs(header->identity_bytes, '\0');
  if (::pread(fd, theirs.data(), theirs.size(),
              static_cast<off_t>(kPackedHeaderBytes + header->payload_bytes)) !=
      static_cast<ssize_t>(theirs.size())) {
    return false;
  }
  const std::set<std::string> now = LinesOf(identity);
  std::set<std::string> paths;
  for (const std::string& line : now) paths.insert(PathOf(line));
  paths.erase("");
  const std::set<std::string> then = LinesOf(theirs);
  return std::any_of(then.begin(), then.end(), [&](const std::string& line) {
    return paths.contains(PathOf(line)) && !now.contains(line);
  });
}

bool IsStale(int cache_folder, const std::string& name, const std::string& identity) {
  const absl::StatusOr<FileDescriptor> file = OpenPrivate(cache_folder, name, O_RDONLY);
  // Whoever maps an image holds a shared lock on it.
  if (!file.ok() || ::flock(file->get(), LOCK_EX | LOCK_NB) != 0) return false;
  struct stat info;
  if (::fstat(file->get(), &info) != 0) return false;
  const auto used = std::chrono::system_clock::from_time_t(info.st_mtime);  // Opening touches it.
  return std::chrono::system_clock::now() - used > kUnusedLimit ||
         IsOfOlderFiles(file->get(), identity);
}

}  // namespace

PackedHeader PackedHeader::Make(const Sha256Digest& key, const Sha256Digest& digest,
                                uint64_t payload_bytes, uint64_t identity_bytes,
                                uint32_t payload_checksum) {
  PackedHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.payload_checksum = payload_checksum;
  header.payload_bytes = payload_bytes;
  header.identity_bytes = identity_bytes;
  std::copy(key.begin(), key.end(), header.key);
  std::copy(digest.begin(), digest.end(), header.digest);
  header.header_checksum = HeaderChecksum(header);
  return header;
}

std::optional<PackedHeader> PackedHeader::Read(int fd) {
  PackedHeader header;
  struct stat info;
  if (::fstat(fd, &info) != 0 || ::pread(fd, &header, sizeof(header), 0) != sizeof(header) ||
      std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.version != kVersion ||
      header.header_checksum != HeaderChecksum(header) ||
      static_cast<uint64_t>(info.st_size) !=
          kPackedHeaderBytes + header.payload_bytes + header.identity_bytes) {
    return std::nullopt;
  }
  return header;
}

void RemoveStaleImages(int cache_folder, const std::string& identity, const std::string& keep) {
  static_cast<void>(ForEachName(cache_folder, [&](const std::string& name) {
    std::string_view stem = name;
    const bool temporary = stem.ends_with(kTemporarySuffix);
    if (temporary) stem.remove_suffix(std::strlen(kTemporarySuffix));
    if (name == keep || !stem.ends_with(kPackedSuffix)) return;
    stem.remove_suffix(std::strlen(kPackedSuffix));
    const std::string lock_name = std::string(stem) + kLockSuffix;
    // Whoever writes one holds its lock; without it a temporary file is a dead process's.
    const absl::StatusOr<FileDescriptor> lock =
        OpenPrivate(cache_folder, lock_name, O_RDWR | O_CREAT, 0600);
    if (!lock.ok() || ::flock(lock->get(), LOCK_EX | LOCK_NB) != 0) return;
    if (!temporary && !IsStale(cache_folder, name, identity)) return;
    if (::unlinkat(cache_folder, name.c_str(), 0) == 0) {
      LogInfo("stale packed weights removed", {{"file", name}});
    }
  }));
}

}  // namespace tandem
