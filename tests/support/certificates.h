// Authorities and certificates of tests, as PEM.

#ifndef TANDEM_TESTS_SUPPORT_CERTIFICATES_H_
#define TANDEM_TESTS_SUPPORT_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <memory>
#include <string>

namespace tandem {

struct TestCertificate {
  std::string pem, key;
};

struct TestCertificateOptions {
  int days = 2;                    // From the beginning on.
  int starts_in_s = -86'400;       // Yesterday.
  std::string names;               // As "DNS:a,IP:127.0.0.1"; empty: the DNS name it is made for.
  std::string extended_key_usage;  // As "serverAuth"; empty: none.
};

// Signs certificates that are valid from yesterday on, for `days` days, as its own is.
class TestAuthority {
 public:
  explicit TestAuthority(int days = 2)
      : key_(EVP_EC_gen("P-256"), EVP_PKEY_free),
        name_("authority " + std::to_string(++num_authorities_)),
        own_(Make(name_, {.days = days}, true)) {}

  const std::string& pem() const { return own_.pem; }
  TestCertificate Issue(const std::string& name, int days = 2) const {
    return Make(name, {.days = days}, false);
  }
  TestCertificate Issue(const std::string& name, const TestCertificateOptions& options) const {
    return Make(name, options, false);
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

  static void Extend(X509* made, int nid, const std::string& value) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
    X509_add_ext(made, extension, -1);
    X509_EXTENSION_free(extension);
  }

  TestCertificate Make(const std::string& name, const TestCertificateOptions& options,
                       bool authority) const {
    const Key fresh(EVP_EC_gen("P-256"), EVP_PKEY_free);
    EVP_PKEY* const key = authority ? key_.get() : fresh.get();
    const std::unique_ptr<X509, decltype(&X509_free)> made(X509_new(), X509_free);
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial_);
    constexpr long kDay = 86'400;
    X509_gmtime_adj(X509_getm_notBefore(made.get()), options.starts_in_s);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), options.starts_in_s + options.days * kDay);
    X509_set_pubkey(made.get(), key);
    const auto name_it = [](X509_NAME* to, const std::string& text) {
      X509_NAME_add_entry_by_txt(to, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(text.c_str()), -1, -1, 0);
    };
    name_it(X509_get_subject_name(made.get()), name);
    const std::unique_ptr<X509_NAME, decltype(&X509_NAME_free)> issuer(X509_NAME_new(),
                                                                       X509_NAME_free);
    name_it(issuer.get(), name_);
    X509_set_issuer_name(made.get(), issuer.get());
    if (authority) {
      Extend(made.get(), NID_basic_constraints, "CA:TRUE");
    } else {
      Extend(made.get(), NID_subject_alt_name,
             options.names.empty() ? "DNS:" + name : options.names);
    }
    if (!options.extended_key_usage.empty()) {
      Extend(made.get(), NID_ext_key_usage, options.extended_key_usage);
    }
    X509_sign(made.get(), key_.get(), EVP_sha256());
    return {.pem = Text([&](BIO* bio) { PEM_write_bio_X509(bio, made.get()); }),
            .key = Text([&](BIO* bio) {
              PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
            })};
  }

  static inline std::atomic<int> num_authorities_{0};
  mutable long serial_ = 0;
  const Key key_;
  const std::string name_;
  const TestCertificate own_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_CERTIFICATES_H_
