#include "runtime/kv_cache/block_hash.h"

#include <algorithm>
#include <string>

#include "runtime/base/check.h"
#include "runtime/base/sha256.h"

namespace tandem {
namespace {

void AppendLittleEndian32(uint32_t value, std::string* bytes) {
  for (int shift = 0; shift < 32; shift += 8) bytes->push_back(static_cast<char>(value >> shift));
}

// Length first, so that no two lists of fields give the same bytes.
void AppendField(std::string_view field, std::string* bytes) {
  AppendLittleEndian32(static_cast<uint32_t>(field.size()), bytes);
  bytes->append(field);
}

BlockHash Truncated(std::string_view bytes) {
  const Sha256Digest digest = Sha256Of(bytes);
  BlockHash hash;
  std::copy_n(digest.begin(), hash.bytes.size(), hash.bytes.begin());
  return hash;
}

}  // namespace

BlockHash HashRoot(std::string_view model, std::string_view adapter, std::string_view salt) {
  std::string bytes = "tandem-kv-root";
  AppendLittleEndian32(kBlockHashVersion, &bytes);
  AppendField(model, &bytes);
  AppendField(adapter, &bytes);
  AppendField(salt, &bytes);
  return Truncated(bytes);
}

BlockHash HashBlock(const BlockHash& parent, std::span<const int32_t> tokens) {
  TANDEM_CHECK(tokens.size() == kHashTokens) << tokens.size() << " tokens";
  std::string bytes(parent.bytes.begin(), parent.bytes.end());
  bytes.reserve(bytes.size() + 4 * tokens.size());
  for (const int32_t token : tokens) AppendLittleEndian32(static_cast<uint32_t>(token), &bytes);
  return Truncated(bytes);
}

std::vector<BlockHash> HashChain(const BlockHash& root, std::span<const int32_t> tokens) {
  std::vector<BlockHash> chain;
  chain.reserve(tokens.size() / kHashTokens);
  BlockHash parent = root;
  for (size_t i = 0; i + kHashTokens <= tokens.size(); i += kHashTokens) {
    parent = HashBlock(parent, tokens.subspan(i, kHashTokens));
    chain.push_back(parent);
  }
  return chain;
}

}  // namespace tandem
