#include "runtime/transport/ucx/ucx_address.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"

namespace tandem {

namespace {

// Versions: of a pool of the host's, as it has always been, and of a device's.
constexpr uint32_t kHostVersion = 1;
constexpr uint32_t kDeviceVersion = 2;
constexpr size_t kMaxPartBytes = 16 << 10;
constexpr size_t kMaxSocketNameBytes = 100;  // sockaddr_un has room for 107.

template <typename T>
void Put(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutText(const std::string& text, std::string* out) {
  Put(static_cast<uint32_t>(text.size()), out);
  out->append(text);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  bool Get(T* value) {
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return true;
  }
  bool GetText(std::string* text) {
    uint32_t size = 0;
    if (!Get(&size) || size > kMaxPartBytes || size > bytes_.size()) return false;
    text->assign(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return true;
  }
  bool AtEnd() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

}  // namespace

std::string EncodeUcxAddress(const UcxAddress& address) {
  std::string out;
  Put(address.device ? kDeviceVersion : kHostVersion, &out);
  Put(address.link, &out);
  PutText(address.host, &out);
  PutText(address.worker_address, &out);
  Put(static_cast<uint8_t>(address.network), &out);
  PutText(address.socket_name, &out);
  PutText(address.pool_key, &out);
  Put(address.pool_base, &out);
  Put(address.block_bytes, &out);
  Put(address.num_blocks, &out);
  return out;
}

absl::StatusOr<UcxAddress> DecodeUcxAddress(std::string_view bytes) {
  Reader reader(bytes);
  UcxAddress address;
  uint32_t version = 0;
  uint8_t network = 0;
  if (!reader.Get(&version) || (version != kHostVersion && version != kDeviceVersion)) {
    return absl::InvalidArgumentError(absl::StrFormat("UCX address: version %d, want %d or %d",
                                                      version, kHostVersion, kDeviceVersion));
  }
  if (!reader.Get(&address.link) || !reader.GetText(&address.host) ||
      !reader.GetText(&address.worker_address) || !reader.Get(&network) || network > 1 ||
      !reader.GetText(&address.socket_name) || !reader.GetText(&address.pool_key) ||
      !reader.Get(&address.pool_base) || !reader.Get(&address.block_bytes) ||
      !reader.Get(&address.num_blocks) || !reader.AtEnd()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("UCX address: %d bytes that are not one", bytes.size()));
  }
  address.network = network == 1;
  address.device = version == kDeviceVersion;
  uint64_t pool_bytes = 0;
  uint64_t pool_end = 0;
  if (address.worker_address.empty() || address.pool_key.empty() != address.device ||
      (address.device && !address.socket_name.empty()) ||
      address.socket_name.size() > kMaxSocketNameBytes || address.block_bytes < 1 ||
      address.num_blocks < 1 ||
      __builtin_mul_overflow(static_cast<uint64_t>(address.block_bytes),
                             static_cast<uint64_t>(address.num_blocks), &pool_bytes) ||
      __builtin_add_overflow(address.pool_base, pool_bytes, &pool_end)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("UCX address: %d blocks of %d bytes, or parts missing", address.num_blocks,
                        address.block_bytes));
  }
  return address;
}

std::string SharedMemoryHostId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat shm = {};
  if (stat("/dev/shm", &shm) != 0) return absl::StrFormat("%s/no-shm/%d", boot, getpid());
  // UCX opens a peer's memory through /proc; abstract sockets belong to the network namespace.
  struct stat processes = {}, network = {};
  if (stat("/proc/self/ns/pid", &processes) != 0) processes.st_ino = 0;
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return absl::StrFormat("%s/%d/%d/%d/%d", boot, shm.st_dev, shm.st_ino, processes.st_ino,
                         network.st_ino);
}

}  // namespace tandem
