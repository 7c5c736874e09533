// A client of TLS that shows no certificate and asks for one page.

#ifndef TANDEM_TESTS_SUPPORT_TLS_ANSWER_H_
#define TANDEM_TESTS_SUPPORT_TLS_ANSWER_H_

#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <memory>
#include <string>

namespace tandem {

// What is answered there; nothing if the handshake fails. Not waited for longer than half a minute.
inline std::string TlsAnswer(int port, const std::string& path) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> client(BIO_new_ssl_connect(context.get()),
                                                             BIO_free_all);
  BIO_set_conn_hostname(client.get(), ("127.0.0.1:" + std::to_string(port)).c_str());
  if (BIO_do_connect(client.get()) != 1) return "";
  const timeval patience{.tv_sec = 30, .tv_usec = 0};
  setsockopt(static_cast<int>(BIO_get_fd(client.get(), nullptr)), SOL_SOCKET, SO_RCVTIMEO,
             &patience, sizeof(patience));
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
  BIO_puts(client.get(), request.c_str());
  std::string answer;
  char bytes[4096];
  int got = 0;
  while ((got = BIO_read(client.get(), bytes, sizeof(bytes))) > 0) answer.append(bytes, got);
  return answer;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_TLS_ANSWER_H_
