#include "services/worker/kv_frame_codec.h"

#include "absl/strings/str_format.h"
#include "runtime/transport/frame_wire.h"

namespace tandem {

namespace {

constexpr char kHeaderTag = (1 << 3) | 2;   // Field 1, length-delimited.
constexpr char kPayloadTag = (2 << 3) | 2;  // Field 2, length-delimited.
constexpr int kMaxVarintBytes = 5;

// Reads across the borders of pieces.
class PieceReader {
 public:
  explicit PieceReader(const std::vector<std::string_view>& pieces) : pieces_(pieces) {}

  bool Byte(uint8_t* byte) {
    while (piece_ < pieces_.size() && offset_ == pieces_[piece_].size()) {
      ++piece_;
      offset_ = 0;
    }
    if (piece_ == pieces_.size()) return false;
    *byte = static_cast<uint8_t>(pieces_[piece_][offset_++]);
    return true;
  }
  bool Bytes(uint8_t* out, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!Byte(out + i)) return false;
    }
    return true;
  }
  bool Varint(uint64_t* value) {
    *value = 0;
    for (int i = 0; i < kMaxVarintBytes; ++i) {
      uint8_t byte = 0;
      if (!Byte(&byte)) return false;
      *value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
  std::vector<std::string_view> Rest(size_t* bytes) {
    std::vector<std::string_view> rest;
    *bytes = 0;
    for (size_t i = piece_; i < pieces_.size(); ++i) {
      const std::string_view part = pieces_[i].substr(i == piece_ ? offset_ : 0);
      if (part.empty()) continue;
      rest.push_back(part);
      *bytes += part.size();
    }
    return rest;
  }

 private:
  const std::vector<std::string_view>& pieces_;
  size_t piece_ = 0;
  size_t offset_ = 0;
};

}  // namespace

std::string EncodeFramePrefix(const FrameHeader& header, uint32_t payload_bytes) {
  std::string out;
  out.reserve(2 + kFrameHeaderBytes + 1 + kMaxVarintBytes);
  out.push_back(kHeaderTag);
  out.push_back(static_cast<char>(kFrameHeaderBytes));
  out.resize(2 + kFrameHeaderBytes);
  PackFrameHeader(header, out.data() + 2);
  out.push_back(kPayloadTag);
  for (uint32_t left = payload_bytes;; left >>= 7) {
    if (left < 0x80) {
      out.push_back(static_cast<char>(left));
      return out;
    }
    out.push_back(static_cast<char>((left & 0x7F) | 0x80));
  }
}

absl::StatusOr<FrameView> DecodeFrame(const std::vector<std::string_view>& pieces) {
  PieceReader reader(pieces);
  uint8_t tag = 0;
  uint8_t header[kFrameHeaderBytes];
  uint64_t length = 0;
  if (!reader.Byte(&tag) || tag != kHeaderTag || !reader.Varint(&length) ||
      length != kFrameHeaderBytes || !reader.Bytes(header, kFrameHeaderBytes) ||
      !reader.Byte(&tag) || tag != kPayloadTag || !reader.Varint(&length)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: not a header of %d bytes and a payload", kFrameHeaderBytes));
  }
  FrameView view{.header = UnpackFrameHeader(header)};
  size_t payload_bytes = 0;
  view.payload = reader.Rest(&payload_bytes);
  if (payload_bytes != length) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: %d bytes of payload, its length says %d", payload_bytes, length));
  }
  return view;
}

}  // namespace tandem
