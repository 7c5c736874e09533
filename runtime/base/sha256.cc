#include "runtime/base/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "runtime/base/check.h"

namespace tandem {

namespace {

// OpenSSL 3 looks an algorithm up for every digest, which takes longer than the name of a block
// does, unless it was fetched before.
const EVP_MD* Algorithm() {
  static const EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  TANDEM_CHECK(sha256 != nullptr);
  return sha256;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  TANDEM_CHECK(context_ != nullptr);
  TANDEM_CHECK(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), Algorithm(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256::Update(const void* data, size_t size_bytes) {
  TANDEM_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data, size_bytes) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  unsigned int size = 0;
  auto* const context = static_cast<EVP_MD_CTX*>(context_);
  TANDEM_CHECK(EVP_DigestFinal_ex(context, digest.data(), &size) == 1);
  TANDEM_CHECK(size == digest.size());
  TANDEM_CHECK(EVP_DigestInit_ex(context, nullptr, nullptr) == 1);
  return digest;
}

Sha256Digest Sha256Of(std::string_view data) {
  thread_local Sha256 sha;
  sha.Update(data);
  return sha.Finish();
}

Sha256Digest HmacSha256(std::string_view key, std::string_view data) {
  Sha256Digest digest;
  unsigned int size = 0;
  TANDEM_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                    reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest.data(),
                    &size) != nullptr);
  TANDEM_CHECK(size == digest.size());
  return digest;
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string HexOf(const uint8_t* bytes, size_t size_bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * size_bytes);
  for (size_t i = 0; i < size_bytes; ++i) {
    hex += kDigits[bytes[i] >> 4];
    hex += kDigits[bytes[i] & 15];
  }
  return hex;
}

}  // namespace tandem
