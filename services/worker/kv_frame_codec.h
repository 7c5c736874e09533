// tandem.v1.Frame in its wire form, read and written around the payload without touching it.

#ifndef TANDEM_SERVICES_WORKER_KV_FRAME_CODEC_H_
#define TANDEM_SERVICES_WORKER_KV_FRAME_CODEC_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/protocol/peer_messages.h"

namespace tandem {

// All that precedes the payload: field 1 with the header, then tag and length of field 2.
std::string EncodeFramePrefix(const FrameHeader& header, uint32_t payload_bytes);

struct FrameView {
  FrameHeader header;
  std::vector<std::string_view> payload;  // Into the pieces, in order.
};

// A message that arrived in `pieces`. InvalidArgument unless it is field 1 of kFrameHeaderBytes and
// then field 2, which reaches exactly to the end. What the header says of the payload is the
// transport's to check.
absl::StatusOr<FrameView> DecodeFrame(const std::vector<std::string_view>& pieces);

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_KV_FRAME_CODEC_H_
