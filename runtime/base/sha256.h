// SHA-256 (FIPS 180-4), incremental, and HMAC over it (RFC 2104). Hides OpenSSL.

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
  Sha256Digest Finish();  // What comes afterwards is another digest's.

 private:
  void* context_;  // EVP_MD_CTX
};

Sha256Digest Sha256Of(std::string_view data);
Sha256Digest HmacSha256(std::string_view key, std::string_view data);
// Takes as long wherever two texts of one length differ, so that a guess learns nothing of it.
bool EqualInConstantTime(std::string_view a, std::string_view b);
// Lower-case hex of the first `size_bytes` bytes.
std::string HexOf(const uint8_t* bytes, size_t size_bytes);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_SHA256_H_
