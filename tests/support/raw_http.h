// A blocking HTTP client that sends exactly the bytes it is given, for tests of servers.

#ifndef TANDEM_TESTS_SUPPORT_RAW_HTTP_H_
#define TANDEM_TESTS_SUPPORT_RAW_HTTP_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct RawAnswer {
  int status = 0;                              // 0: the connection ended before a whole header.
  std::map<std::string, std::string> headers;  // Names in lower case.
  std::string body;                            // Without chunk framing.
  bool complete = false;                       // To its proper end.
};

class RawHttp {
 public:
  // Connects, from that address.
  explicit RawHttp(int port, int receive_buffer_bytes = 0, const char* from = "127.0.0.1");
  ~RawHttp();
  RawHttp(const RawHttp&) = delete;
  RawHttp& operator=(const RawHttp&) = delete;

  void Send(std::string_view bytes);
  // GET without a body, else POST.
  void SendRequest(const std::string& path, const std::string& body = "",
                   const std::string& more_headers = "");
  RawAnswer Read();
  RawAnswer Exchange(const std::string& path, const std::string& body = "",
                     const std::string& more_headers = "") {
    SendRequest(path, body, more_headers);
    return Read();
  }
  // Reads until the raw bytes contain `text`. False if the connection ends before.
  bool ReadUntil(std::string_view text);
  // Reads and drops everything until the server closes; how many bytes came.
  size_t ReadToEnd();

  // Whether what was sent is with the other end's kernel, or its process.
  bool AllReceived() const;
  // The other end of the connection, if it is of this process, which goes on to own it; else -1.
  int ServerSide() const;

 private:
  bool ReadMore();

  int socket_ = -1;
  std::string buffer_;
  bool closed_ = false;  // By the server.
};

// Whether the server of HTTP/2 at that port begins by telling this setting (RFC 9113, 6.5.2).
bool TellsSetting(int port, uint8_t id, uint32_t value);

// The data of every event of a stream.
std::vector<std::string> EventsOf(const std::string& body);

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_RAW_HTTP_H_
