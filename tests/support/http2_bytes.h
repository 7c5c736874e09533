// HTTP/2 byte by byte, for tests that say what no library would (RFC 9113).

#ifndef TANDEM_TESTS_SUPPORT_HTTP2_BYTES_H_
#define TANDEM_TESTS_SUPPORT_HTTP2_BYTES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {

inline constexpr int kDataFrame = 0, kHeadersFrame = 1, kResetFrame = 3, kSettingsFrame = 4,
                     kPingFrame = 6, kGoawayFrame = 7, kWindowUpdateFrame = 8,
                     kContinuationFrame = 9;
inline constexpr int kAckFlag = 1, kEndStreamFlag = 1, kEndHeadersFlag = 4, kPaddedFlag = 8;

inline std::string BigEndian(uint32_t value, int num_bytes) {
  std::string bytes;
  for (int i = num_bytes - 1; i >= 0; --i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

inline std::string Http2Frame(int type, uint32_t stream, std::string_view payload = "",
                              int flags = 0) {
  const auto size = static_cast<uint32_t>(payload.size());
  std::string frame = BigEndian(size, 3) + BigEndian(static_cast<uint32_t>(type), 1) +
                      BigEndian(static_cast<uint32_t>(flags), 1) + BigEndian(stream, 4);
  return frame.append(payload);
}

// The header block of a gRPC call, every field a literal that is not indexed.
inline std::string HeaderBlock(std::string_view path) {
  std::string block;
  for (const auto& [name, value] :
       {std::pair<std::string_view, std::string_view>{":method", "POST"},
        {":scheme", "http"},
        {":path", path},
        {":authority", "test"},
        {"te", "trailers"},
        {"content-type", "application/grpc"}}) {
    block.push_back('\0');
    block.push_back(static_cast<char>(name.size()));
    block.append(name);
    block.push_back(static_cast<char>(value.size()));
    block.append(value);
  }
  return block;
}

inline std::string CallHeaders(uint32_t stream, std::string_view path) {
  return Http2Frame(kHeadersFrame, stream, HeaderBlock(path), kEndHeadersFlag);
}

inline std::string ResetOf(uint32_t stream) {
  return Http2Frame(kResetFrame, stream, std::string(4, '\0'));
}

inline std::string WindowUpdate(uint32_t stream, uint32_t more) {
  return Http2Frame(kWindowUpdateFrame, stream, BigEndian(more, 4));
}

// An empty message, and no more.
inline std::string EmptyMessage(uint32_t stream) {
  return Http2Frame(kDataFrame, stream, std::string(5, '\0'), kEndStreamFlag);
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_HTTP2_BYTES_H_
