// SHA-256 (FIPS 180-4), incremental. Hides OpenSSL.

#ifndef TANDEM_RUNTIME_BASE_SHA256_H_
#define TANDEM_RUNTIME_BASE_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tandem {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(const void* data, size_t size_bytes);
  void Update(std::string_view text) { Update(text.data(), text.size()); }
  Sha256Digest Finish();  // Once; the object is spent afterwards.

 private:
  void* context_;  // EVP_MD_CTX
};

Sha256Digest Sha256Of(std::string_view data);
// Lower-case hex of the first `size_bytes` bytes.
std::string HexOf(const uint8_t* bytes, size_t size_bytes);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_SHA256_H_
