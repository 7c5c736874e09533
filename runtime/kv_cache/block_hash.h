// Names of KV content: a chain of SHA-256, truncated to 128 bits.
//
// The hash of a full block covers its parent's hash and its own 16 token ids; the root covers the
// hash version, the model, the adapter and the tenant's salt. Equal names mean equal prefixes, on
// every worker and router. Granularity is 16 tokens fleet-wide; a pool block of 32 tokens has the
// name of its last 16. Token ids are still compared on a hit.

#ifndef TANDEM_RUNTIME_KV_CACHE_BLOCK_HASH_H_
#define TANDEM_RUNTIME_KV_CACHE_BLOCK_HASH_H_

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

inline constexpr int kHashTokens = 16;
inline constexpr uint32_t kBlockHashVersion = 1;

struct BlockHash {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const BlockHash&) const = default;

  // The bytes are uniform already.
  template <typename H>
  friend H AbslHashValue(H h, const BlockHash& hash) {
    uint64_t word;
    std::memcpy(&word, hash.bytes.data(), sizeof(word));
    return H::combine(std::move(h), word);
  }
};

// `salt` is HMAC(configured secret, tenant), or empty where no secret is configured.
BlockHash HashRoot(std::string_view model, std::string_view adapter, std::string_view salt);

// `tokens` are exactly kHashTokens ids.
BlockHash HashBlock(const BlockHash& parent, std::span<const int32_t> tokens);

// Names of all full runs of kHashTokens in `tokens`, in order.
std::vector<BlockHash> HashChain(const BlockHash& root, std::span<const int32_t> tokens);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_KV_CACHE_BLOCK_HASH_H_
