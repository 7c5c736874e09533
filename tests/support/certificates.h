// Authorities and certificates of tests, as PEM.

#ifndef TANDEM_TESTS_SUPPORT_CERTIFICATES_H_
#define TANDEM_TESTS_SUPPORT_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace tandem {

struct TestCertificate {
  std::string pem, key;
};

// Signs certificates that are valid from yesterday on, for `days` days, as its own is.
class TestAuthority {
 public:
  explicit TestAuthority(int days = 2)
      : key_(EVP_EC_gen("P-256"), EVP_PKEY_free), own_(Make("authority", days, true)) {}

  const std::string& pem() const { return own_.pem; }
  TestCertificate Issue(const std::string& name, int days = 2) const {
    return Make(name, days, false);
  }

 private:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

  template <typename Write>
  static std::string Text(const Write& write) {
    const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
    write(bio.get());
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(bio.get(), &bytes);
    return {bytes, static_cast<size_t>(size)};
  }

  TestCertificate Make(const std::string& name, int days, bool authority) const {
    const Key fresh(EVP_EC_gen("P-256"), EVP_PKEY_free);
    EVP_PKEY* const key = authority ? key_.get() : fresh.get();
    const std::unique_ptr<X509, decltype(&X509_free)> made(X509_new(), X509_free);
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial_);
    constexpr long kDay = 86'400;
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -kDay);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), (days - 1) * kDay);
    X509_set_pubkey(made.get(), key);
    const auto name_it = [](X509_NAME* to, const std::string& text) {
      X509_NAME_add_entry_by_txt(to, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(text.c_str()), -1, -1, 0);
    };
    name_it(X509_get_subject_name(made.get()), name);
    const std::unique_ptr<X509_NAME, decltype(&X509_NAME_free)> issuer(X509_NAME_new(),
                                                                       X509_NAME_free);
    name_it(issuer.get(), "authority");
    X509_set_issuer_name(made.get(), issuer.get());
    X509_EXTENSION* const extension =
        authority
            ? X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "CA:TRUE")
            : X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, ("DNS:" + name).c_str());
    X509_add_ext(made.get(), extension, -1);
    X509_EXTENSION_free(extension);
    X509_sign(made.get(), key_.get(), EVP_sha256());
    return {.pem = Text([&](BIO* bio) { PEM_write_bio_X509(bio, made.get()); }),
            .key = Text([&](BIO* bio) {
              PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
            })};
  }

  mutable long serial_ = 0;
  const Key key_;
  const TestCertificate own_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_CERTIFICATES_H_
