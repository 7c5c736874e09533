#include "runtime/model/packed_image.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/huge_pages.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr size_t kCheckBytes = size_t{4} << 20;

absl::Status SystemError(std::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrFormat("cannot %s %s: %s", std::string(what), path,
                                                std::generic_category().message(errno)));
}

// Held until the descriptor closes; the system lets go of a dead process's.
absl::Status Lock(int fd, const std::string& path) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno == EWOULDBLOCK) {
    LogInfo("another process packs these weights: waiting for it", {{"lock", path}});
  }
  while (::flock(fd, LOCK_EX) != 0) {
    if (errno != EINTR) return SystemError("lock", path);
  }
  return absl::OkStatus();
}

// Makes it, and the ones above it, if need be: whatever the umask allows, it is this user's alone.
absl::StatusOr<FileDescriptor> OpenCacheFolder(const std::string& path) {
  const std::filesystem::path folder(path);
  std::error_code ignored;  // Opening says what is wrong.
  std::filesystem::create_directories(
      (folder.has_filename() ? folder : folder.parent_path()).parent_path(), ignored);
  ::mkdir(path.c_str(), 0700);
  // With a slash behind it, a link's target would be opened.
  const std::string name = (folder.has_filename() ? folder : folder.parent_path()).string();
  return OpenPrivate(AT_FDCWD, name, O_RDONLY | O_DIRECTORY);
}

}  // namespace

std::string DefaultCacheDir() {
  if (const char* base = std::getenv("XDG_CACHE_HOME"); base != nullptr && base[0] == '/') {
    return absl::StrCat(base, "/tandem");
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return absl::StrCat(home, "/.cache/tandem");
  }
  return "";
}

CachePlace FindCachePlace(const std::string& cache_dir, size_t payload_bytes) {
  if (cache_dir.empty()) return CachePlace::kNone;
  const absl::StatusOr<FileDescriptor> folder = OpenCacheFolder(cache_dir);
  if (!folder.ok()) return CachePlace::kNone;
  bool is_being_made = false;
  std::error_code failed;
  for (std::filesystem::directory_iterator file(cache_dir, failed), end; !failed && file != end;
       file.increment(failed)) {
    const std::string name = file->path().filename();
    is_being_made |= name.ends_with(kTemporarySuffix);
    std::error_code ignored;
    if (name.ends_with(kPackedSuffix) && file->file_size(ignored) >= payload_bytes && !ignored) {
      return CachePlace::kImage;
    }
  }
  if (is_being_made) return CachePlace::kRoom;  // Whoever makes it has taken the room.
  struct statvfs space {};
  if (::fstatvfs(folder->get(), &space) != 0) return CachePlace::kNone;
  const uint64_t free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  return free_bytes > payload_bytes + kPackedHeaderBytes ? CachePlace::kRoom : CachePlace::kNone;
}

absl::StatusOr<std::unique_ptr<PackedImage>> PackedImage::Open(const PackedImageOptions& options,
                                                               const Fill& fill) {
  if (options.cache_dir.empty()) return MakeInMemory(options, fill);
  const std::string stem = HexOf(options.key.data(), options.key.size());
  const std::string name = stem + kPackedSuffix;
  const auto uncached = [&](const absl::Status& why) {
    LogWarning("packed weights are not cached",
               {{"folder", options.cache_dir}, {"why", std::string(why.message())}});
    return MakeInMemory(options, fill);
  };
  const absl::StatusOr<FileDescriptor> folder = OpenCacheFolder(options.cache_dir);
  if (!folder.ok()) return uncached(folder.status());

  absl::StatusOr<std::unique_ptr<PackedImage>> image = OpenCached(options, folder->get(), name);
  if (image.ok()) return image;
  absl::StatusOr<FileDescriptor> lock =
      OpenPrivate(folder->get(), stem + kLockSuffix, O_RDWR | O_CREAT, 0600);
  if (!lock.ok()) return uncached(lock.status());
  if (const absl::Status locked = Lock(lock->get(), stem + kLockSuffix); !locked.ok()) {
    return uncached(locked);
  }
  image = OpenCached(options, folder->get(), name);  // Another worker may have made it meanwhile.
  if (image.ok()) return image;
  if (absl::IsFailedPrecondition(image.status())) {
    LogWarning("cached weights are not used but packed again",
               {{"folder", options.cache_dir}, {"why", std::string(image.status().message())}});
  }
  image = MakeCached(options, folder->get(), name, fill);
  if (image.ok()) RemoveStaleImages(folder->get(), options.identity, name);
  if (image.ok() || !absl::IsUnavailable(image.status())) return image;
  *lock = FileDescriptor();  // Who can share nothing waits for nobody.
  return uncached(image.status());
}

absl::StatusOr<std::unique_ptr<PackedImage>> PackedImage::OpenCached(
    const PackedImageOptions& options, int folder, const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(FileDescriptor file, OpenPrivate(folder, name, O_RDONLY));
  const std::string path = absl::StrCat(options.cache_dir, "/", name);
  const std::optional<PackedHeader> header = PackedHeader::Read(file.get());
  if (!header || header->payload_bytes != options.payload_bytes ||
      header->identity_bytes != options.identity.size() ||
      std::memcmp(header->key, options.key.data(), sizeof(header->key)) != 0) {
    return absl::UnavailableError(absl::StrCat(path, " is not the image wanted"));
  }
  // For RemoveStaleImages: in use, and used now. Where either fails, the worst is packing again.
  ::flock(file.get(), LOCK_SH | LOCK_NB);
  ::futimens(file.get(), nullptr);
  const size_t want = kPackedHeaderBytes + options.payload_bytes;
  void* const mapping = ::mmap(nullptr, want, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) return SystemError("map", path);
  ::madvise(mapping, want, MADV_WILLNEED);
  std::unique_ptr<PackedImage> image(new PackedImage());
  image->mapping_ = static_cast<std::byte*>(mapping);
  image->mapping_bytes_ = want;
  image->payload_ = {image->mapping_ + kPackedHeaderBytes, options.payload_bytes};
  std::copy_n(header->digest, 32, image->digest_.begin());
  image->from_cache_ = true;
  image->path_ = path;
  image->file_ = std::move(file);
  image->StartCheck(header->payload_checksum, options.on_corrupt);
  return image;
}

// The caller holds the lock, so temporary files of this key are dead processes'.
absl::StatusOr<std::unique_ptr<PackedImage>> PackedImage::MakeCached(
    const PackedImageOptions& options, int folder, const std::string& name, const Fill& fill) {
  const std::string temporary = name + kTemporarySuffix;
  const auto remove = [&] { ::unlinkat(folder, temporary.c_str(), 0); };
  remove();
  absl::Cleanup remove_unless_renamed(remove);
  absl::StatusOr<FileDescriptor> made =
      OpenPrivate(folder, temporary, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (!made.ok()) {  // Some file systems give what we make to another user.
    return absl::UnavailableError(made.status().message());
  }
  FileDescriptor file = *std::move(made);
  const size_t bytes = kPackedHeaderBytes + options.payload_bytes + options.identity.size();
  // Blocks are taken now: a full disk must be an error here, not a SIGBUS while packing.
  if (const int failure = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
      failure != 0) {
    errno = failure;
    return SystemError("take room for", temporary);
  }
  void* const mapping = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) return SystemError("map", temporary);
  std::unique_ptr<PackedImage> image(new PackedImage());
  image->mapping_ = static_cast<std::byte*>(mapping);
  image->mapping_bytes_ = bytes;
  const std::span<std::byte> payload(image->mapping_ + kPackedHeaderBytes, options.payload_bytes);
  TANDEM_ASSIGN_OR_RETURN(const Sha256Digest digest, fill(payload));
  image->payload_ = payload;
  image->digest_ = digest;
  image->path_ = absl::StrCat(options.cache_dir, "/", name);

  std::memcpy(image->mapping_ + kPackedHeaderBytes + payload.size(), options.identity.data(),
              options.identity.size());
  const PackedHeader header =
      PackedHeader::Make(options.key, digest, payload.size(), options.identity.size(),
                         Crc32c(payload.data(), payload.size()));
  std::memcpy(image->mapping_, &header, sizeof(header));
  ::flock(file.get(), LOCK_SH | LOCK_NB);  // In use, for RemoveStaleImages.
  if (::fdatasync(file.get()) != 0 ||
      ::renameat(folder, temporary.c_str(), folder, name.c_str()) != 0) {
    return SystemError("write", name);
  }
  std::move(remove_unless_renamed).Cancel();
  ::mprotect(image->mapping_, bytes, PROT_READ);
  image->file_ = std::move(file);
  return image;
}

absl::StatusOr<std::unique_ptr<PackedImage>> PackedImage::MakeInMemory(
    const PackedImageOptions& options, const Fill& fill) {
  const size_t bytes = std::max<size_t>(options.payload_bytes, 1);
  TANDEM_ASSIGN_OR_RETURN(std::byte* const mapping, MapHugePages(bytes, "packed weights"));
  std::unique_ptr<PackedImage> image(new PackedImage());
  image->mapping_ = mapping;
  image->mapping_bytes_ = bytes;
  const std::span<std::byte> payload(image->mapping_, options.payload_bytes);
  TANDEM_ASSIGN_OR_RETURN(image->digest_, fill(payload));
  image->payload_ = payload;
  ::mprotect(mapping, bytes, PROT_READ);
  return image;
}

void PackedImage::StartCheck(uint32_t checksum, std::function<void(absl::Status)> on_corrupt) {
  check_ = std::thread([this, checksum, on_corrupt = std::move(on_corrupt)] {
    ::pthread_setname_np(::pthread_self(), "weights-check");
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
    uint32_t crc = 0;
    for (size_t done = 0; done < payload_.size(); done += kCheckBytes) {
      if (stop_.load(std::memory_order_relaxed)) return;
      crc = Crc32c(payload_.data() + done, std::min(kCheckBytes, payload_.size() - done), crc);
    }
    if (crc == checksum) return;
    ::unlink(path_.c_str());
    LogError("packed weights are corrupt; the cache file was removed",
             {{"path", path_}, {"checksum", crc}, {"expected", checksum}});
    if (on_corrupt) {
      on_corrupt(absl::DataLossError(
          absl::StrFormat("%s: checksum %08x, expected %08x", path_, crc, checksum)));
    }
  });
}

void PackedImage::WaitForCheck() {
  if (check_.joinable()) check_.join();
}

PackedImage::~PackedImage() {
  stop_.store(true, std::memory_order_relaxed);
  if (check_.joinable()) check_.join();
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

}  // namespace tandem
