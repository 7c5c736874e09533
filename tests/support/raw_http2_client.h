// A client that says HTTP/2 byte by byte (http2_bytes.h) and hears whole frames.

#ifndef TANDEM_TESTS_SUPPORT_RAW_HTTP2_CLIENT_H_
#define TANDEM_TESTS_SUPPORT_RAW_HTTP2_CLIENT_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "services/server/http2_frames.h"
#include "tests/support/eventually.h"
#include "tests/support/http2_bytes.h"

namespace tandem {

// Sends what it is given while it reads what comes.
class RawHttp2Client {
 public:
  explicit RawHttp2Client(int port, const char* from = "127.0.0.1") {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from, &address.sin_addr);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawHttp2Client() { close(socket_); }
  RawHttp2Client(const RawHttp2Client&) = delete;
  RawHttp2Client& operator=(const RawHttp2Client&) = delete;

  // Begins a connection: the preface, and settings that acknowledge nothing.
  RawHttp2Client& Greet() {
    Send(std::string(kHttp2Preface) + Http2Frame(kSettingsFrame, 0));
    return *this;
  }
  void Send(const std::string& bytes) { unsent_ += bytes; }
  // How many bytes the kernel takes now. Nothing is read.
  size_t SendOnly(const std::string& bytes) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return static_cast<size_t>(std::max<ssize_t>(0, sent));
  }
  // The connection ends with this object, by a reset instead of an orderly close.
  void ResetAtEnd() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    EXPECT_EQ(setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  }
  void EndSending() {
    EXPECT_TRUE(Eventually([&] { return Pump() && unsent_.empty(); }));
    shutdown(socket_, SHUT_WR);
  }
  // Sends and reads as much as there is now. False once the server has ended it.
  bool Pump() {
    while (!unsent_.empty()) {
      const ssize_t sent =
          send(socket_, unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent <= 0) break;
      unsent_.erase(0, static_cast<size_t>(sent));
    }
    char bytes[4096];
    while (true) {
      const ssize_t size = recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT);
      if (size == 0 || (size < 0 && errno != EAGAIN)) return false;
      if (size < 0) return true;
      read_.append(bytes, static_cast<size_t>(size));
    }
  }
  bool Ends() {
    return Eventually([&] { return !Pump(); });
  }
  // Whether such a frame comes before the end.
  bool Hears(int type, uint32_t stream) {
    bool open = true;
    EXPECT_TRUE(Eventually([&] {
      open = open && Pump();
      return Has(type, stream) || !open;
    }));
    return Has(type, stream);
  }
  // Acknowledges the PINGs and SETTINGS that have come.
  void Acknowledge() {
    const std::vector<Frame> frames = Frames();
    for (; num_acknowledged_ < frames.size(); ++num_acknowledged_) {
      const Frame& frame = frames[num_acknowledged_];
      if ((frame.type != kPingFrame && frame.type != kSettingsFrame) || frame.flags == kAckFlag) {
        continue;
      }
      Send(Http2Frame(frame.type, 0, frame.type == kPingFrame ? frame.payload : "", kAckFlag));
    }
  }

 private:
  struct Frame {
    int type = 0, flags = 0;
    uint32_t stream = 0;  // The last byte of its id.
    std::string payload;
  };
  // What has come whole.
  std::vector<Frame> Frames() const {
    const auto byte = [&](size_t at) { return static_cast<uint8_t>(read_[at]); };
    std::vector<Frame> frames;
    for (size_t at = 0; at + 9 <= read_.size();) {
      const size_t size = size_t{byte(at)} << 16 | size_t{byte(at + 1)} << 8 | byte(at + 2);
      if (at + 9 + size > read_.size()) break;
      frames.push_back({.type = byte(at + 3),
                        .flags = byte(at + 4),
                        .stream = byte(at + 8),
                        .payload = read_.substr(at + 9, size)});
      at += 9 + size;
    }
    return frames;
  }
  bool Has(int type, uint32_t stream) const {
    const std::vector<Frame> frames = Frames();
    return std::any_of(frames.begin(), frames.end(), [&](const Frame& frame) {
      return frame.type == type && frame.stream == stream;
    });
  }

  int socket_;
  std::string unsent_, read_;
  size_t num_acknowledged_ = 0;  // So many of the frames that have come were looked at.
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_RAW_HTTP2_CLIENT_H_
