#include "services/server/socket_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <map>
#include <random>
#include <vector>

#include "services/server/tls_metrics.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::HasSubstr;

// A client of OpenSSL's own at the other end of a socket pair, both ends without waiting.
class Client {
 public:
  Client(int descriptor, const std::string& authority, const TestCertificate* shown,
         const std::string& protocol)
      : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free), tls_(nullptr, SSL_free) {
    const std::unique_ptr<BIO, decltype(&BIO_free)> reader(
        BIO_new_mem_buf(authority.data(), static_cast<int>(authority.size())), BIO_free);
    X509* const believed = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr);
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), believed);
    X509_free(believed);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_mode(context_.get(),
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (shown != nullptr) Show(*shown);
    tls_.reset(SSL_new(context_.get()));
    SSL_set_fd(tls_.get(), descriptor);
    const std::string wire = static_cast<char>(protocol.size()) + protocol;
    SSL_set_alpn_protos(tls_.get(), reinterpret_cast<const unsigned char*>(wire.data()),
                        static_cast<unsigned>(wire.size()));
    SSL_set_connect_state(tls_.get());
  }

  SSL* tls() { return tls_.get(); }
  // As of SocketStream.
  ssize_t Read(char* to, size_t size) {
    size_t done = 0;
    const int result = SSL_read_ex(tls(), to, size, &done);
    return Outcome(result, done);
  }
  ssize_t Write(std::string_view bytes) {
    size_t done = 0;
    const int result = SSL_write_ex(tls(), bytes.data(), bytes.size(), &done);
    return Outcome(result, done);
  }

 private:
  void Show(const TestCertificate& shown) {
    const std::string both = shown.pem + shown.key;
    const std::unique_ptr<BIO, decltype(&BIO_free)> reader(
        BIO_new_mem_buf(both.data(), static_cast<int>(both.size())), BIO_free);
    X509* const certificate = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr);
    EVP_PKEY* const key = PEM_read_bio_PrivateKey(reader.get(), nullptr, nullptr, nullptr);
    SSL_CTX_use_certificate(context_.get(), certificate);
    SSL_CTX_use_PrivateKey(context_.get(), key);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  ssize_t Outcome(int result, size_t done) {
    if (result == 1) return static_cast<ssize_t>(done);
    const int error = SSL_get_error(tls(), result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      return SocketStream::kWouldBlock;
    }
    return error == SSL_ERROR_ZERO_RETURN ? 0 : SocketStream::kLost;
  }

  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> tls_;
};

class SocketStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair_), 0);
    WriteFiles(authority_.Issue("server"));
    files_ = {.certificate = folder_.path() + "/cert",
              .key = folder_.path() + "/key",
              .client_authorities = folder_.Write("authorities", authority_.pem())};
  }
  void TearDown() override {
    close(pair_[0]);
    close(pair_[1]);
  }

  void WriteFiles(const TestCertificate& shown) {
    folder_.Write("cert", shown.pem);
    folder_.Write("key", shown.key);
  }
  void Open() {
    absl::StatusOr<std::unique_ptr<TlsIdentity>> opened = TlsIdentity::Open(files_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    identity_ = *std::move(opened);
    identity_->SetOnHandshake([this](bool ok) { ++(ok ? num_ok_ : num_failed_); });
  }
  // Turns until both have the handshake behind them, or one is lost. Whether the server took it.
  bool Shake(SocketStream* server, Client* client) {
    char byte = 0;
    for (int i = 0; i < 100; ++i) {
      const bool lost = client->Read(&byte, 1) == SocketStream::kLost;
      const ssize_t got = server->Read(&byte, 1);
      if (got == SocketStream::kLost) return false;
      if (!lost && SSL_is_init_finished(client->tls()) == 1 && num_ok_ == 1) return true;
    }
    return false;
  }

  TempFolder folder_;
  const TestAuthority authority_;
  TlsFiles files_;
  std::unique_ptr<TlsIdentity> identity_;
  int pair_[2] = {-1, -1};
  int num_ok_ = 0, num_failed_ = 0;
};

TEST_F(SocketStreamTest, WhatIsWrittenIsReadHoweverItIsCut) {
  files_.client_authorities.clear();
  Open();
  const auto seed = static_cast<unsigned>(std::random_device()());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  SocketStream server(pair_[0], {.identity = identity_.get()}, kAlpnHttp2);
  Client client(pair_[1], authority_.pem(), nullptr, kAlpnHttp2);
  ASSERT_TRUE(Shake(&server, &client));
  std::string sent(1'000'000, '\0');
  std::generate(sent.begin(), sent.end(), [&] { return static_cast<char>(random()); });
  // One end writes as much as goes, the other reads some of it, until all has come.
  const auto pass = [&](auto* from, auto* to) {
    std::vector<char> buffer(SocketStream::kMaxRecordBytes);
    std::string got;
    size_t written = 0;
    bool has_blocked = false;
    while (got.size() < sent.size()) {
      if (written < sent.size()) {
        const std::string rest = sent.substr(written);  // Each time elsewhere.
        const ssize_t done = from->Write(rest);
        ASSERT_NE(done, SocketStream::kLost);
        has_blocked |= done == SocketStream::kWouldBlock;
        written += static_cast<size_t>(std::max<ssize_t>(0, done));
      }
      const ssize_t read = to->Read(buffer.data(), 1 + random() % buffer.size());
      ASSERT_NE(read, SocketStream::kLost);
      if (read > 0) got.append(buffer.data(), static_cast<size_t>(read));
    }
    EXPECT_EQ(got, sent);
    EXPECT_TRUE(has_blocked) << "the socket always had room: nothing was shown";
  };
  // Room for less than a record, and for some of them.
  for (const int room : {4096, 100'000}) {
    for (const int end : pair_) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    pass(&client, &server);
    pass(&server, &client);
  }
  EXPECT_EQ(server.read_awaits(), SocketStream::Awaits::kReadable);
  EXPECT_EQ(server.write_awaits(), SocketStream::Awaits::kWritable);
  char byte = 0;
  server.EndWriting();
  EXPECT_EQ(client.Read(&byte, 1), 0) << "an end, and not a cut";
}

TEST_F(SocketStreamTest, ARecordIsReadWhole) {
  files_.client_authorities.clear();
  Open();
  SocketStream server(pair_[0], {.identity = identity_.get()}, kAlpnHttp2);
  Client client(pair_[1], authority_.pem(), nullptr, kAlpnHttp2);
  ASSERT_TRUE(Shake(&server, &client));
  const std::string record(SocketStream::kMaxRecordBytes, 'x');
  ASSERT_EQ(client.Write(record), static_cast<ssize_t>(record.size()));
  std::vector<char> buffer(record.size());
  ASSERT_EQ(server.Read(buffer.data(), buffer.size()), static_cast<ssize_t>(record.size()));
  pollfd polled{.fd = pair_[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&polled, 1, 0), 0);
}

// Whoever showed a certificate once must show one again.
TEST_F(SocketStreamTest, NoConnectionGoesOnWithAnEarlierOnesHandshake) {
  Open();
  const TestCertificate shown = authority_.Issue("client");
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    std::unique_ptr<SSL_SESSION, decltype(&SSL_SESSION_free)> earlier(nullptr, SSL_SESSION_free);
    for (const bool again : {false, true}) {
      int pair[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
      num_ok_ = 0;
      SocketStream server(pair[0], {.identity = identity_.get()}, kAlpnHttp2);
      Client client(pair[1], authority_.pem(), &shown, kAlpnHttp2);
      SSL_set_max_proto_version(client.tls(), version);
      if (again) SSL_set_session(client.tls(), earlier.get());
      ASSERT_TRUE(Shake(&server, &client));
      ASSERT_EQ(SSL_version(client.tls()), version);
      EXPECT_EQ(SSL_session_reused(client.tls()), 0);
      char byte = 0;
      ASSERT_EQ(server.Write("x"), 1);
      ASSERT_EQ(client.Read(&byte, 1), 1);  // And a ticket, were there any.
      earlier.reset(SSL_get1_session(client.tls()));
      EXPECT_EQ(SSL_SESSION_has_ticket(earlier.get()), 0);
      close(pair[0]);
      close(pair[1]);
    }
  }
}

TEST_F(SocketStreamTest, WhoIsNobodysClientIsLost) {
  Open();
  const TestAuthority other;
  const TestCertificate good = authority_.Issue("client"), strange = other.Issue("client"),
                        expired = authority_.Issue("client", /*days=*/0);
  struct Case {
    const char* what;
    const TestCertificate* shown;
    const char* protocol;
    bool any_client;
    bool taken;
  };
  for (const Case& c : std::vector<Case>{{"good", &good, kAlpnHttp2, false, true},
                                         {"none", nullptr, kAlpnHttp2, false, false},
                                         {"none asked for", nullptr, kAlpnHttp2, true, true},
                                         {"strange", &strange, kAlpnHttp2, false, false},
                                         {"expired", &expired, kAlpnHttp2, false, false},
                                         {"protocol", &good, "h3", false, false},
                                         {"longer protocol", &good, "h2c", false, false}}) {
    SCOPED_TRACE(c.what);
    TearDown();
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair_), 0);
    num_ok_ = num_failed_ = 0;
    SocketStream server(pair_[0], {.identity = identity_.get(), .any_client = c.any_client},
                        kAlpnHttp2);
    Client client(pair_[1], authority_.pem(), c.shown, c.protocol);
    EXPECT_EQ(Shake(&server, &client), c.taken);
    EXPECT_EQ(num_ok_, c.taken ? 1 : 0);
    EXPECT_EQ(num_failed_, c.taken ? 0 : 1);
    if (c.taken) continue;
    char byte = 0;
    EXPECT_EQ(server.Read(&byte, 1), SocketStream::kLost) << "and stays so";
    EXPECT_EQ(server.Write("secret"), SocketStream::kLost);
  }
}

// The authorities of a cluster sign others' certificates, too.
TEST_F(SocketStreamTest, WhoseCertificateIsForAnotherNameIsLost) {
  files_.peer_name = "fleet.prod.test";
  Open();
  for (const auto& [names, taken] :
       {std::pair("DNS:fleet.prod.test", true), std::pair("DNS:a,DNS:Fleet.PROD.test", true),
        std::pair("DNS:another", false), std::pair("DNS:*.prod.test", false),
        std::pair("DNS:f*.prod.test", false), std::pair("DNS:a.fleet.prod.test", false),
        std::pair("URI:spiffe://a/b", false), std::pair("IP:127.0.0.1", false)}) {
    SCOPED_TRACE(names);
    TearDown();
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair_), 0);
    num_ok_ = num_failed_ = 0;
    SocketStream server(pair_[0], {.identity = identity_.get()}, kAlpnHttp2);
    // Its common name is nobody's name.
    const TestCertificate shown = authority_.Issue("fleet.prod.test", {.names = names});
    Client client(pair_[1], authority_.pem(), &shown, kAlpnHttp2);
    EXPECT_EQ(Shake(&server, &client), taken);
    EXPECT_EQ(num_failed_, taken ? 0 : 1);
  }
}

TEST_F(SocketStreamTest, WhatIsNoTlsIsLost) {
  Open();
  SocketStream server(pair_[0], {.identity = identity_.get()}, kAlpnHttp1);
  const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_EQ(write(pair_[1], request.data(), request.size()), static_cast<ssize_t>(request.size()));
  char bytes[100];
  EXPECT_EQ(server.Read(bytes, sizeof(bytes)), SocketStream::kLost);
}

TEST_F(SocketStreamTest, AConnectionThatIsCutOffIsNoEnd) {
  files_.client_authorities.clear();
  Open();
  SocketStream server(pair_[0], {.identity = identity_.get()}, kAlpnHttp1);
  Client client(pair_[1], authority_.pem(), nullptr, kAlpnHttp1);
  ASSERT_TRUE(Shake(&server, &client));
  shutdown(pair_[1], SHUT_WR);
  char byte = 0;
  EXPECT_EQ(server.Read(&byte, 1), SocketStream::kLost);
}

TEST_F(SocketStreamTest, NothingIsSaidOnceTheDescriptorIsSomebodyElses) {
  files_.client_authorities.clear();
  Open();
  SocketStream server(pair_[0], {.identity = identity_.get()}, kAlpnHttp1);
  Client client(pair_[1], authority_.pem(), nullptr, kAlpnHttp1);
  ASSERT_TRUE(Shake(&server, &client));
  SocketStream clear(pair_[0]);
  for (SocketStream* const stream : {&server, &clear}) {
    stream->Detach();
    char byte = 0;
    EXPECT_EQ(stream->Read(&byte, 1), SocketStream::kLost);
    EXPECT_EQ(stream->Write("x"), SocketStream::kLost);
    stream->EndWriting();
  }
  char byte = 0;
  EXPECT_EQ(read(pair_[1], &byte, 1), -1) << "nothing came";
}

TEST_F(SocketStreamTest, CertificatesChangeOnceTheyFit) {
  Open();
  const int64_t now_s = std::time(nullptr);
  EXPECT_NEAR(static_cast<double>(identity_->lifetime().ends_s),
              static_cast<double>(now_s + 86'400), 60);
  const auto before = identity_->Context();
  const TestCertificate next = authority_.Issue("next", /*days=*/9);
  folder_.Write("cert", next.pem);
  identity_->Look();
  EXPECT_EQ(identity_->Context(), before) << "the key is still the old one";
  folder_.Write("key", next.key);
  identity_->Look();
  EXPECT_NE(identity_->Context(), before);
  const uint64_t num_changes = identity_->num_changes();
  identity_->Look();
  EXPECT_EQ(identity_->num_changes(), num_changes) << "the files are the same";
  EXPECT_NEAR(static_cast<double>(identity_->lifetime().ends_s),
              static_cast<double>(now_s + 8 * 86'400), 60);
  // In a chain the first that ends counts.
  folder_.Write("cert", next.pem + authority_.Issue("between", /*days=*/3).pem);
  identity_->Look();
  EXPECT_NEAR(static_cast<double>(identity_->lifetime().ends_s),
              static_cast<double>(now_s + 2 * 86'400), 60);
  const auto whole = identity_->Context();
  for (const std::string& torn :
       {std::string(), next.pem.substr(0, 300), next.pem + "-----BEGIN"}) {
    folder_.Write("cert", torn);
    identity_->Look();
    EXPECT_EQ(identity_->Context() == whole, torn.size() <= next.pem.size()) << torn;
  }
}

TEST_F(SocketStreamTest, ACertificateThatHasEndedReplacesNoneThatHasNot) {
  WriteFiles(authority_.Issue("old", /*days=*/0));
  Open();
  const int64_t now_s = std::time(nullptr);
  EXPECT_LT(identity_->lifetime().ends_s, now_s) << "better than nothing";
  WriteFiles(authority_.Issue("good"));
  identity_->Look();
  EXPECT_GT(identity_->lifetime().ends_s, now_s);
  const auto good = identity_->Context();
  const uint64_t num_changes = identity_->num_changes();
  const std::string pem = identity_->pems()->certificate;
  WriteFiles(authority_.Issue("older", /*days=*/0));
  identity_->Look();
  EXPECT_EQ(identity_->Context(), good);
  EXPECT_EQ(identity_->num_changes(), num_changes);
  EXPECT_EQ(identity_->pems()->certificate, pem);
}

TEST_F(SocketStreamTest, WhatEveryClientWouldRefuseReplacesNothing) {
  Open();
  const auto good = identity_->Context();
  const TestAuthority ended(/*days=*/0);
  const auto refuse = [&](const TestCertificateOptions& options, const std::string& authorities,
                          const std::string& why) {
    WriteFiles(authority_.Issue("server", options));
    folder_.Write("authorities", authorities);
    testing::internal::CaptureStderr();
    identity_->Look();
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(why));
    EXPECT_EQ(identity_->Context(), good) << why;
    EXPECT_TRUE(identity_->refused());
  };
  const std::string ca = authority_.pem();
  refuse({.starts_in_s = 3600}, ca, ", is not yet valid");
  refuse({.extended_key_usage = "clientAuth"}, ca, ", is not one for servers");
  refuse({}, ended.pem(), "/authorities: all 1 authorities have expired, the first is CN=auth");
  // Nobody knows whom clients believe, and what for.
  WriteFiles(TestAuthority().Issue("server", {.extended_key_usage = "serverAuth"}));
  folder_.Write("authorities", ended.pem() + ca);
  identity_->Look();
  EXPECT_NE(identity_->Context(), good);
  EXPECT_FALSE(identity_->refused());
}

TEST_F(SocketStreamTest, LifetimesAreOfWhatEndsFirst) {
  const auto near = [now_s = std::time(nullptr)](int64_t time_s, int days) {
    return std::abs(time_s - now_s - days * 86'400) < 60;
  };
  folder_.Write("authorities", authority_.pem() + TestAuthority(/*days=*/5).pem());
  WriteFiles(authority_.Issue("server", /*days=*/9));
  Open();
  EXPECT_TRUE(near(identity_->lifetime().starts_s, -1));
  EXPECT_TRUE(near(identity_->lifetime().ends_s, 8));
  EXPECT_TRUE(near(identity_->authorities_lifetime().starts_s, -1));
  EXPECT_TRUE(near(identity_->authorities_lifetime().ends_s, 1));
  folder_.Write("authorities", TestAuthority(/*days=*/5).pem());
  identity_->Look();
  EXPECT_TRUE(near(identity_->authorities_lifetime().ends_s, 4));
}

TEST_F(SocketStreamTest, MetricsTellOfCertificatesAndOfAuthorities) {
  MetricsRegistry registry;
  WriteFiles(authority_.Issue("server", /*days=*/9));
  Open();
  ShowInMetrics("fleet", identity_.get(), &registry);
  std::map<std::string, double> days;
  const auto now_s = static_cast<double>(std::time(nullptr));
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (!family.name.ends_with("_timestamp_seconds")) continue;
      days[family.name + " " + metric.label.at(0).value] =
          std::round((metric.gauge.value - now_s) / 86'400);
    }
  }
  const std::map<std::string, double> expected = {
      {"tandem_certificate_expiry_timestamp_seconds fleet", 8},
      {"tandem_certificate_expiry_timestamp_seconds fleet_authorities", 1},
      {"tandem_certificate_start_timestamp_seconds fleet", -1},
      {"tandem_certificate_start_timestamp_seconds fleet_authorities", -1}};
  EXPECT_EQ(days, expected);
  const auto refused = [&registry] {
    for (const prometheus::MetricFamily& family : registry.Collect()) {
      if (family.name == "tandem_certificate_refused") return family.metric.at(0).gauge.value;
    }
    return -1.0;
  };
  EXPECT_EQ(refused(), 0);
  folder_.Write("cert", "");
  identity_->Look();
  EXPECT_EQ(refused(), 1);
}

TEST_F(SocketStreamTest, WhatCannotBeUsedIsNamed) {
  const auto error = [this] { return std::string(TlsIdentity::Open(files_).status().message()); };
  folder_.Write("key", authority_.Issue("another").key);
  EXPECT_THAT(error(), HasSubstr("/key: not the key of the certificate in"));
  folder_.Write("key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
  EXPECT_THAT(error(), HasSubstr("/key: no PEM private key"));
  folder_.Write("cert", "nothing");
  EXPECT_THAT(error(), HasSubstr("/cert: no PEM certificate"));
  const TestCertificate good = authority_.Issue("server");
  folder_.Write("cert", good.pem + good.pem.substr(0, 200));
  EXPECT_THAT(error(), HasSubstr("/cert: certificate 2 cannot be read"));
  WriteFiles(good);
  folder_.Write("authorities", "");
  EXPECT_THAT(error(), HasSubstr("/authorities: no PEM certificate"));
  files_.client_authorities = folder_.path() + "/none";
  EXPECT_THAT(error(), HasSubstr("/none: No such file"));
}

}  // namespace
}  // namespace tandem
