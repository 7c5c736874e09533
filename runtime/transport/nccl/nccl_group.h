// The headers of an NCCL operation's blocks, as a frame down the stream: the first one and, as its
// payload, those that follow.

#ifndef TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_GROUP_H_
#define TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_GROUP_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/nccl/nccl_pair.h"
#include "runtime/transport/stream/frame_stream.h"

namespace tandem {

// Stands for a group of none.
inline constexpr FrameHeader kNoHeader;

class FollowingHeaders final : public FramePayload {
 public:
  static std::unique_ptr<FramePayload> Of(std::span<const FrameHeader> headers) {
    std::vector<std::byte> packed(headers.size() * kFrameHeaderBytes);
    for (size_t i = 0; i < headers.size(); ++i) {
      PackFrameHeader(headers[i], &packed[i * kFrameHeaderBytes]);
    }
    return std::make_unique<FollowingHeaders>(std::move(packed));
  }
  // A vector that moves leaves its bytes where they are.
  explicit FollowingHeaders(std::vector<std::byte> packed)
      : FramePayload(packed), packed_(std::move(packed)) {}

 private:
  const std::vector<std::byte> packed_;
};

// At most NcclPair::kGroup.
inline void WriteGroup(std::span<const FrameHeader> group, FrameStream* stream) {
  if (group.empty()) return stream->Write(kNoHeader, FollowingHeaders::Of({}));
  stream->Write(group[0], FollowingHeaders::Of(group.subspan(1)));
}

// `following` is the payload of the frame that begins with `first`, in pieces. InvalidArgument,
// with the numbers, if it has no whole headers, or too many.
inline absl::StatusOr<std::vector<FrameHeader>> ReadGroup(
    const FrameHeader& first, std::span<const std::string_view> following) {
  std::string bytes;
  for (const std::string_view piece : following) bytes.append(piece);
  if (bytes.empty() && first == kNoHeader) return std::vector<FrameHeader>();
  const size_t size = 1 + bytes.size() / kFrameHeaderBytes;
  if (bytes.size() % kFrameHeaderBytes != 0 || size > NcclPair::kGroup) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: %d bytes behind a header, want further headers of %d, %d at most",
                        bytes.size(), kFrameHeaderBytes, NcclPair::kGroup - 1));
  }
  std::vector<FrameHeader> group = {first};
  while (group.size() < size) {
    group.push_back(UnpackFrameHeader(&bytes[(group.size() - 1) * kFrameHeaderBytes]));
  }
  return group;
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_GROUP_H_
