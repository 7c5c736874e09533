#include "services/server/http2_frames.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr size_t kFrameHeaderBytes = 9;
constexpr uint8_t kData = 0, kHeaders = 1, kRstStream = 3, kSettings = 4, kPing = 6;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;

struct FrameHeader {
  explicit FrameHeader(std::string_view bytes)
      : frame_bytes(kFrameHeaderBytes +
                    (Byte(bytes, 0) << 16 | Byte(bytes, 1) << 8 | Byte(bytes, 2))),
        type(static_cast<uint8_t>(Byte(bytes, 3))),
        flags(static_cast<uint8_t>(Byte(bytes, 4))),
        stream((Byte(bytes, 5) & 0x7f) << 24 | Byte(bytes, 6) << 16 | Byte(bytes, 7) << 8 |
               Byte(bytes, 8)) {}

  static uint32_t Byte(std::string_view bytes, size_t at) {
    return static_cast<uint8_t>(bytes[at]);
  }

  size_t frame_bytes;
  uint8_t type, flags;
  uint32_t stream;
};

Http2Piece Broken() { return {.kind = Http2Piece::Kind::kBroken}; }

}  // namespace

Http2Piece Http2Frames::Peek(std::string_view bytes) {
  if (sender_ == Sender::kClient && !greeted_) {
    const size_t size = std::min(bytes.size(), kHttp2Preface.size());
    if (bytes.substr(0, size) != kHttp2Preface.substr(0, size)) return Broken();
    if (size < kHttp2Preface.size()) return {};
    return {.kind = Http2Piece::Kind::kBytes, .bytes = size};
  }
  if (left_ > 0) {
    if (bytes.empty()) return {};
    const size_t size = std::min(bytes.size(), left_);
    return {.kind = Http2Piece::Kind::kBytes,
            .bytes = size,
            .left = left_ - size,
            .in_block = in_server_block_};
  }
  if (in_block_ > 0) return PeekBlock(bytes);
  if (bytes.size() < kFrameHeaderBytes) return {};
  const FrameHeader header(bytes);
  const bool by_server = sender_ == Sender::kServer;
  if (!by_server && header.type == kHeaders) return PeekBlock(bytes);
  if (!by_server && header.type == kContinuation) return Broken();
  const bool last = by_server && (header.type == kData || header.type == kHeaders) &&
                    (header.flags & kEndStream) != 0;
  const bool is_asked = header.type == kPing || header.type == kSettings;
  const bool acknowledges = (header.flags & kAck) != 0;
  const bool in_block = (header.type == kHeaders || header.type == kContinuation) &&
                        (header.flags & kEndHeaders) == 0;
  const size_t size = std::min(bytes.size(), header.frame_bytes);
  return {.kind = Http2Piece::Kind::kBytes,
          .bytes = size,
          .left = header.frame_bytes - size,
          .stream = header.stream,
          .ends = last || header.type == kRstStream,
          .asks = is_asked && !acknowledges,
          .answers = is_asked && acknowledges,
          .in_block = in_block};
}

// Every client's stream has an odd number.
Http2Piece Http2Frames::PeekBlock(std::string_view bytes) {
  while (bytes.size() >= in_block_ + kFrameHeaderBytes) {
    const FrameHeader header(bytes.substr(in_block_));
    const uint32_t stream = FrameHeader(bytes).stream;
    const size_t end = in_block_ + header.frame_bytes;
    if (header.type != (in_block_ == 0 ? kHeaders : kContinuation) || header.stream != stream ||
        stream % 2 == 0 || end > kMaxHeaderBlockBytes) {
      return Broken();
    }
    if (bytes.size() < end) return {};
    if ((header.flags & kEndHeaders) != 0) {
      return {.kind = Http2Piece::Kind::kHeaders, .bytes = end, .stream = stream};
    }
    in_block_ = end;
  }
  return {};
}

void Http2Frames::Take(const Http2Piece& piece) {
  greeted_ = true;
  left_ = piece.left;
  in_server_block_ = piece.in_block;
  in_block_ = 0;
}

}  // namespace tandem
