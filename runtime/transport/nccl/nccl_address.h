// The addresses of an NCCL link's two ends.

#ifndef TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_ADDRESS_H_
#define TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_ADDRESS_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "runtime/transport/nccl/nccl_api.h"

namespace tandem {

struct NcclAddress {
  static constexpr uint32_t kVersion = 3;  // since GPUs are held for an operation
  static constexpr size_t kTokenBytes = 16;

  std::string token;  // The receiver's name for the link, random; the sender's end repeats it.
  int64_t block_bytes = 0;
  uint64_t precedence = 0;         // The GPU's: of two, the lower one is held first.
  std::optional<NcclUniqueId> id;  // The sender's end has one: of the pair's communicator.
};

// Version, bytes of a block, precedence, token and, if there is one, id.
inline std::string EncodeNcclAddress(const NcclAddress& address) {
  std::string out;
  out.append(reinterpret_cast<const char*>(&NcclAddress::kVersion), sizeof(uint32_t));
  out.append(reinterpret_cast<const char*>(&address.block_bytes), sizeof(int64_t));
  out.append(reinterpret_cast<const char*>(&address.precedence), sizeof(uint64_t));
  out.append(address.token);
  if (address.id.has_value()) out.append(address.id->internal, sizeof(NcclUniqueId));
  return out;
}

// InvalidArgument if they are not those of the sender's end, or of the receiver's.
inline absl::StatusOr<NcclAddress> DecodeNcclAddress(const std::string& bytes, bool senders) {
  constexpr size_t kPrecedenceAt = sizeof(uint32_t) + sizeof(int64_t);
  constexpr size_t kTokenAt = kPrecedenceAt + sizeof(uint64_t);
  constexpr size_t kIdAt = kTokenAt + NcclAddress::kTokenBytes;
  const size_t wanted = kIdAt + (senders ? sizeof(NcclUniqueId) : 0);
  if (bytes.size() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrFormat("NCCL address: %d bytes, want %d", bytes.size(), wanted));
  }
  uint32_t version = 0;
  NcclAddress address;
  std::memcpy(&version, bytes.data(), sizeof(version));
  std::memcpy(&address.block_bytes, bytes.data() + sizeof(version), sizeof(address.block_bytes));
  if (version != NcclAddress::kVersion || address.block_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("NCCL address: version %d, want %d, of blocks of %d bytes", version,
                        NcclAddress::kVersion, address.block_bytes));
  }
  std::memcpy(&address.precedence, bytes.data() + kPrecedenceAt, sizeof(address.precedence));
  address.token = bytes.substr(kTokenAt, NcclAddress::kTokenBytes);
  if (senders)
    std::memcpy(address.id.emplace().internal, bytes.data() + kIdAt, sizeof(NcclUniqueId));
  return address;
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_ADDRESS_H_
