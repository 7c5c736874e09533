// Messages between our processes: the first byte picks the kind, the rest are its bytes. What is
// accepted is in range, and says the same when it is written again.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "google/protobuf/stubs/logging.h"
#include "runtime/base/check.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/ucx/ucx_address.h"
#include "services/server/convert.h"
#include "services/server/limits.h"
#include "services/server/metrics_registry.h"
#include "services/worker/kv_frame_codec.h"

namespace tandem {
namespace {

template <typename Message>
void CheckMessage(std::string_view bytes) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto read = FromProto(message);
  if (!read.ok()) {
    TANDEM_CHECK(absl::IsInvalidArgument(read.status())) << read.status();
    return;
  }
  Message first, second;
  ToProto(*read, &first);
  const auto again = FromProto(first);
  TANDEM_CHECK(again.ok()) << again.status();
  ToProto(*again, &second);
  TANDEM_CHECK(first.SerializeAsString() == second.SerializeAsString()) << first.DebugString();
}

void CheckMetrics(std::string_view bytes) {
  v1::MetricsSnapshot snapshot;
  if (!snapshot.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  auto families = MetricsFromProto(snapshot);
  if (!families.ok()) return;
  AddLabel("worker", "w", &*families);
  MetricsToText(*families);
}

void CheckFrame(std::string_view bytes) {
  const size_t message_bytes = bytes.size();
  // Cut into uneven pieces, as a network would.
  std::vector<std::string_view> pieces;
  for (size_t step = 1; !bytes.empty(); step = step * 2 + 1) {
    pieces.push_back(bytes.substr(0, step));
    bytes.remove_prefix(pieces.back().size());
  }
  const auto frame = DecodeFrame(pieces);
  if (!frame.ok()) return;
  size_t payload_bytes = 0;
  for (const std::string_view piece : frame->payload) payload_bytes += piece.size();
  TANDEM_CHECK(payload_bytes + kFrameHeaderBytes < message_bytes);
}

void CheckAddress(std::string_view bytes) {
  const auto address = DecodeUcxAddress(bytes);
  if (address.ok()) TANDEM_CHECK(EncodeUcxAddress(*address) == bytes);
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // It has a line for every string that is no UTF-8.
  static const bool kSilent = (google::protobuf::SetLogHandler(nullptr), true);
  static_cast<void>(kSilent);
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 9) {
    case 0:
      tandem::CheckMessage<tandem::proto::ToWorker>(bytes);
      break;
    case 1:
      tandem::CheckMessage<tandem::proto::StepBatch>(bytes);
      break;
    case 2:
      tandem::CheckMessage<tandem::proto::WatchEvent>(bytes);
      break;
    case 3:
      tandem::CheckMessage<tandem::proto::ToPrefill>(bytes);
      break;
    case 4:
      tandem::CheckMessage<tandem::proto::ToDecode>(bytes);
      break;
    case 5:
      tandem::CheckMessage<tandem::proto::PrefillHello>(bytes);
      break;
    case 6:
      tandem::CheckMetrics(bytes);
      break;
    case 7:
      tandem::CheckFrame(bytes);
      break;
    default:
      tandem::CheckAddress(bytes);
  }
  return 0;
}
