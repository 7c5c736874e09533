#include "tools/tandem/http_client.h"

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/status_macros.h"
#include "services/server/api_keys.h"

namespace tandem {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Error = boost::system::error_code;

struct HttpConnection::State {
  HttpTarget target;
  std::chrono::milliseconds silence;
  asio::io_context io;
  boost::beast::tcp_stream stream{io};
  // Only for https.
  std::optional<asio::ssl::context> tls;
  std::optional<boost::beast::ssl_stream<boost::beast::tcp_stream&>> secure;
  boost::beast::flat_buffer buffer;
  bool open = false;

  // Blocks until the operation that `start` starts has ended, or time is up: Beast's time limits
  // are those of asynchronous operations. Its last argument is a handler.
  template <typename StartOperation>
  Error Await(const StartOperation& start) {
    Error result;
    stream.expires_after(silence);
    start([&result](const Error& error, const auto&) { result = error; });
    io.restart();
    io.run();
    return result;
  }
  // The same with what is spoken to the server through: `start` takes it, and a handler.
  template <typename StartOperation>
  Error AwaitStream(const StartOperation& start) {
    return Await([&](auto done) {
      if (target.tls) return start(*secure, done);
      start(stream, done);
    });
  }

  // Names the file that cannot be used.
  absl::Status ReadFiles() {
    tls.emplace(asio::ssl::context::tls_client);
    Error error;
    const auto done = [&error](const std::string& file) {
      if (!error) return absl::OkStatus();
      return absl::UnavailableError(absl::StrCat(file, ": ", error.message()));
    };
    const HttpTlsFlags& files = target.tls_files;
    if (files.authorities.empty()) {
      tls->set_default_verify_paths(error);
    } else {
      tls->load_verify_file(files.authorities, error);
    }
    TANDEM_RETURN_IF_ERROR(done(files.authorities.empty() ? "authorities" : files.authorities));
    if (files.certificate.empty()) return absl::OkStatus();
    tls->use_certificate_chain_file(files.certificate, error);
    TANDEM_RETURN_IF_ERROR(done(files.certificate));
    tls->use_private_key_file(files.key, asio::ssl::context::pem, error);
    return done(files.key);
  }

  Error Handshake() {
    secure.emplace(stream, *tls);
    secure->set_verify_mode(asio::ssl::verify_peer);
    const std::string host = WithoutBrackets(target.host);
    SSL* const ssl = secure->native_handle();
    if (IsIpAddress(host)) {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
    } else {
      SSL_set1_host(ssl, host.c_str());
      SSL_set_tlsext_host_name(ssl, host.c_str());
    }
    return Await([&](auto done) {
      secure->async_handshake(asio::ssl::stream_base::client,
                              [done](const Error& failed) { done(failed, 0); });
    });
  }
  // After Handshake has failed: what its error does not say. May be empty.
  std::string WhyNoHandshake() {
    const long verified = SSL_get_verify_result(secure->native_handle());
    if (verified != X509_V_OK) {
      return absl::StrCat(" (", X509_verify_cert_error_string(verified), ")");
    }
    return target.tls_files.certificate.empty()
               ? " (does it speak TLS, and ask for no certificate?)"
               : " (does it speak TLS?)";
  }
};

namespace {

absl::Status Lost(const HttpTarget& target, const Error& error, const std::string& why = "") {
  return absl::UnavailableError(
      absl::StrCat(target.host, ":", target.port, ": ", error.message(), why));
}

}  // namespace

void HttpTlsFlags::Declare(FlagSet* flags) {
  flags->Add("tls-ca", &authorities, "FILE",
             "PEM certificates of those who sign the server's; empty: those of the system, or of "
             "the file that SSL_CERT_FILE names");
  flags->Add("tls-cert", &certificate, "FILE",
             "PEM certificate, and chain, that this client shows to a server with --tls-client-ca");
  flags->Add("tls-key", &key, "FILE", "its PEM key");
}

absl::StatusOr<HttpTarget> ParseHttpTarget(std::string_view url, const HttpTlsFlags& tls) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("want http://HOST:PORT or https, got \"", std::string(url), "\""));
  HttpTarget target{.tls = url.starts_with("https://"), .tls_files = tls};
  if (!target.tls && !url.starts_with("http://")) return bad;
  url.remove_prefix(url.find("//") + 2);
  const size_t slash = url.find('/');
  if (slash != url.npos) {
    target.base_path = std::string(url.substr(slash));
    while (target.base_path.ends_with('/')) target.base_path.pop_back();
    url = url.substr(0, slash);
  }
  const size_t colon = url.ends_with(']') ? url.npos : url.rfind(':');
  target.host = std::string(url.substr(0, colon));
  target.port =
      colon == url.npos ? (target.tls ? "443" : "80") : std::string(url.substr(colon + 1));
  if (target.host.empty() || target.port.empty()) return bad;
  if (tls.certificate.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key: name both or none");
  }
  if (!target.tls && !(tls.authorities.empty() && tls.certificate.empty())) {
    return absl::InvalidArgumentError("--tls-ca, --tls-cert and --tls-key need an https target");
  }
  return target;
}

HttpConnection::HttpConnection(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpConnection::~HttpConnection() = default;

absl::StatusOr<std::unique_ptr<HttpConnection>> HttpConnection::Connect(
    const HttpTarget& target, std::chrono::milliseconds silence) {
  auto state = std::make_unique<State>();
  state->target = target;
  state->silence = silence;
  Error error;
  asio::ip::tcp::resolver resolver(state->io);
  const auto addresses = resolver.resolve(WithoutBrackets(target.host), target.port, error);
  if (!error) {
    error = state->Await([&](auto done) { state->stream.async_connect(addresses, done); });
  }
  if (!error) state->stream.socket().set_option(asio::ip::tcp::no_delay(true), error);
  if (!error && target.tls) {
    TANDEM_RETURN_IF_ERROR(state->ReadFiles());
    error = state->Handshake();
    if (error) return Lost(target, error, state->WhyNoHandshake());
  }
  if (error) return Lost(target, error);
  state->open = true;
  return std::unique_ptr<HttpConnection>(new HttpConnection(std::move(state)));
}

absl::StatusOr<int> HttpConnection::Send(const std::string& path, const std::string& body,
                                         const OnPiece& on_piece) {
  State& state = *state_;
  if (!state.open) return absl::UnavailableError("the connection is closed");
  http::request<http::string_body> request(body.empty() ? http::verb::get : http::verb::post,
                                           state.target.base_path + path, 11);
  request.set(http::field::host, state.target.host + ":" + state.target.port);
  request.set(http::field::user_agent, "tandem/" TANDEM_VERSION);
  if (const char* const key = std::getenv(kApiKeyVariable); key != nullptr && *key != '\0') {
    request.set(http::field::authorization, std::string("Bearer ") + key);
  }
  if (!body.empty()) {
    request.set(http::field::content_type, "application/json");
    request.body() = body;
  }
  request.prepare_payload();
  Error error =
      state.AwaitStream([&](auto& stream, auto done) { http::async_write(stream, request, done); });
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  if (!error) {
    error = state.AwaitStream([&](auto& stream, auto done) {
      http::async_read_header(stream, state.buffer, parser, done);
    });
  }
  if (error) {
    state.open = false;
    return Lost(state.target, error);
  }
  std::array<char, 16384> piece;
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    parser.get().body().more = true;
    error = state.AwaitStream([&](auto& stream, auto done) {
      http::async_read_some(stream, state.buffer, parser, done);
    });
    if (error == http::error::need_buffer) error = {};
    const size_t size = piece.size() - parser.get().body().size;
    if (error || (size > 0 && !on_piece(std::string_view(piece.data(), size)))) {
      state.stream.close();
      state.open = false;
      if (error) return Lost(state.target, error);
      return parser.get().result_int();
    }
  }
  if (!parser.get().keep_alive()) state.open = false;
  return parser.get().result_int();
}

bool EventStreamParser::Feed(std::string_view piece,
                             const std::function<bool(std::string_view)>& on_data) {
  while (!piece.empty()) {
    const size_t newline = piece.find('\n');
    unfinished_line_.append(piece.substr(0, newline));
    if (newline == piece.npos) return true;
    piece.remove_prefix(newline + 1);
    std::string line;
    line.swap(unfinished_line_);
    if (line.ends_with('\r')) line.pop_back();
    constexpr std::string_view kData = "data:";
    if (!line.starts_with(kData)) continue;
    std::string_view data = std::string_view(line).substr(kData.size());
    if (data.starts_with(' ')) data.remove_prefix(1);  // The one that may follow.
    if (!on_data(data)) return false;
  }
  return true;
}

}  // namespace tandem
