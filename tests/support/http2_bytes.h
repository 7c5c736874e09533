// HTTP/2 byte by byte, for tests that say what no library would (RFC 9113).

#ifndef TANDEM_TESTS_SUPPORT_HTTP2_BYTES_H_
#define TANDEM_TESTS_SUPPORT_HTTP2_BYTES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {

inline constexpr int kDataFrame = 0, kHeadersFrame = 1, kResetFrame = 3, kSettingsFrame = 4,
                     kPingFrame = 6, kGoawayFrame = 7, kContinuationFrame = 9;
inline constexpr int kAckFlag = 1, kEndStreamFlag = 1, kEndHeadersFlag = 4, kPaddedFlag = 8;

inline std::string Http2Frame(int type, uint32_t stream, std::string_view payload = "",
                              int flags = 0) {
  const auto size = static_cast<uint32_t>(payload.size());
  std::string frame;
  for (const uint32_t byte :
       {size >> 16, size >> 8, size, static_cast<uint32_t>(type), static_cast<uint32_t>(flags),
        stream >> 24, stream >> 16, stream >> 8, stream}) {
    frame.push_back(static_cast<char>(byte));
  }
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

// An empty message, and no more.
inline std::string EmptyMessage(uint32_t stream) {
  return Http2Frame(kDataFrame, stream, std::string(5, '\0'), kEndStreamFlag);
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_HTTP2_BYTES_H_
