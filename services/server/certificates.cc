#include "services/server/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

constexpr size_t kMaxDescribedBytes = 256;  // For the subject, and as many for the names.

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

Bio Reader(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

// What `write` writes, in one line of ASCII.
template <typename Write>
std::string Text(const Write& write) {
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  write(bio.get());
  char* bytes = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(bio.get(), &bytes));
  std::string text(bytes, std::min(size, kMaxDescribedBytes));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return size > kMaxDescribedBytes ? text + "..." : text;
}

int64_t UnixSeconds(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

std::string NamesOf(const X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  ERR_clear_error();
  if (names == nullptr) return "no name";
  return Text([&](BIO* bio) {
    for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
      if (i > 0) BIO_puts(bio, ", ");
      GENERAL_NAME_print(bio, sk_GENERAL_NAME_value(names.get(), i));
    }
  });
}

std::string TimeText(int64_t unix_s) {
  const time_t time = unix_s;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace

std::string LastTlsReason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown" : reason;
}

absl::StatusOr<Certificates> ReadCertificates(const std::string& path, const std::string& pem,
                                              size_t most, const char* what) {
  Certificates out;
  const Bio reader = Reader(pem);
  ERR_clear_error();
  while (X509* const one = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    out.emplace_back(one);
    if (out.size() > most) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": more than ", most, " ", what));
    }
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string why = LastTlsReason();
  if (!at_end) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": certificate ", out.size() + 1, " cannot be read: ", why));
  }
  if (out.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": no PEM certificate"));
  return out;
}

absl::StatusOr<PrivateKey> ReadPrivateKey(const std::string& path, const std::string& pem) {
  const Bio reader = Reader(pem);
  // Nobody is there to type a password.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  ERR_clear_error();
  PrivateKey key(PEM_read_bio_PrivateKey(reader.get(), nullptr, no_password, nullptr));
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no PEM private key without a password: ", LastTlsReason()));
  }
  return key;
}

TlsLifetime LifetimeOf(const X509* certificate) {
  return {.starts_s = UnixSeconds(X509_get0_notBefore(certificate)),
          .ends_s = UnixSeconds(X509_get0_notAfter(certificate))};
}

std::string Describe(const X509* certificate) {
  const std::string subject = Text([&](BIO* bio) {
    X509_NAME_print_ex(bio, X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  });
  const TlsLifetime lifetime = LifetimeOf(certificate);
  return absl::StrCat(subject.empty() ? "no subject" : subject, ", for ", NamesOf(certificate),
                      ", from ", TimeText(lifetime.starts_s), " to ", TimeText(lifetime.ends_s));
}

}  // namespace tandem
