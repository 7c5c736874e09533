// Packed weights as one piece of memory: filled once, cached on disk, mapped by every worker of a
// machine.
//
// A cache file is named by its key, which covers everything that decides its bytes (checkpoint
// files by path, size, mtime and inode; formats of packed weights; compute type; plan). It is
// written to a temporary file and renamed, under a lock, so that of several workers starting at
// once one packs and the others wait and map. Its header is checked when it is opened, its checksum
// in the background; a file that fails is removed and reported. Whoever makes one removes stale
// ones (RemoveStaleImages).
//
// What is served must be what this user packed, so the folder and the file belong to the effective
// user, nobody else may write them, and neither is a link. Anything else is logged and packed
// again.

#ifndef TANDEM_RUNTIME_MODEL_PACKED_IMAGE_H_
#define TANDEM_RUNTIME_MODEL_PACKED_IMAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/private_file.h"
#include "runtime/base/sha256.h"
#include "runtime/model/packed_file.h"

namespace tandem {

struct PackedImageOptions {
  std::string cache_dir;  // Made if it does not exist. Empty: no cache, plain memory.
  Sha256Digest key{};
  std::string identity;  // The checkpoint's, WeightSource::Identity().
  size_t payload_bytes = 0;
  // Called at most once, on the checking thread, with DataLoss: what was mapped must not be used
  // any further. The cache file is gone by then, so a restart packs afresh.
  std::function<void(absl::Status)> on_corrupt;
};

// $XDG_CACHE_HOME/tandem, else $HOME/.cache/tandem, else empty.
std::string DefaultCacheDir();

// What a cache folder has for an image of so many bytes: one of that size, room for it (or somebody
// making one), or neither, as the folder is not this user's alone, its file system is full, or
// there is none.
enum class CachePlace : uint8_t { kNone, kRoom, kImage };
CachePlace FindCachePlace(const std::string& cache_dir, size_t payload_bytes);

// Immutable after Open; any thread may read.
class PackedImage {
 public:
  // Writes the payload and returns the digest of what it was made from.
  using Fill = std::function<absl::StatusOr<Sha256Digest>(std::span<std::byte> payload)>;

  // Maps the cached image or makes it with `fill`. A cache that cannot be used (no room, no rights,
  // others' rights) is logged and done without. ResourceExhausted without memory; errors of `fill`.
  static absl::StatusOr<std::unique_ptr<PackedImage>> Open(const PackedImageOptions& options,
                                                           const Fill& fill);
  ~PackedImage();  // Ends the check.
  PackedImage(const PackedImage&) = delete;
  PackedImage& operator=(const PackedImage&) = delete;

  std::span<const std::byte> payload() const { return payload_; }  // 64-byte aligned.
  const Sha256Digest& digest() const { return digest_; }
  bool from_cache() const { return from_cache_; }    // Mapped as another run left it.
  const std::string& path() const { return path_; }  // Empty: not on disk.

  // Waits for the background check, if one runs.
  void WaitForCheck();

 private:
  PackedImage() = default;

  // In the open cache folder, under this name.
  static absl::StatusOr<std::unique_ptr<PackedImage>> OpenCached(const PackedImageOptions& options,
                                                                 int folder,
                                                                 const std::string& name);
  static absl::StatusOr<std::unique_ptr<PackedImage>> MakeCached(const PackedImageOptions& options,
                                                                 int folder,
                                                                 const std::string& name,
                                                                 const Fill& fill);
  static absl::StatusOr<std::unique_ptr<PackedImage>> MakeInMemory(
      const PackedImageOptions& options, const Fill& fill);
  void StartCheck(uint32_t checksum, std::function<void(absl::Status)> on_corrupt);

  std::byte* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  std::span<const std::byte> payload_;
  Sha256Digest digest_{};
  bool from_cache_ = false;
  std::string path_;
  FileDescriptor file_;  // Locked, which tells others that the image is in use.
  std::atomic<bool> stop_{false};
  std::thread check_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_PACKED_IMAGE_H_
