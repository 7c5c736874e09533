// Checks of single message fields; private to the conversions of this folder.

#ifndef TANDEM_SERVICES_SERVER_FIELD_CHECKS_H_
#define TANDEM_SERVICES_SERVER_FIELD_CHECKS_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/check_range.h"
#include "runtime/base/status_macros.h"
#include "runtime/kv_cache/block_hash.h"
#include "runtime/protocol/sampled_token.h"
#include "services/server/convert.h"
#include "services/server/limits.h"

namespace tandem {

// InvalidArgument "field: 300 bytes, at most 256".
absl::Status CheckSize(const char* field, int64_t size, int64_t limit, const char* unit);
// At most kMaxTextBytes.
absl::Status CheckText(const char* field, const std::string& text);
// Present in every message that belongs to a request.
absl::Status CheckPresent(const char* field, bool present);

absl::Status ReadHash(const char* field, const std::string& bytes, BlockHash* out);
// 0 to kMaxDurationUs.
absl::Status ReadDuration(const char* field, int64_t in, int64_t* out);
// Not OK: what ends something is an error.
absl::Status ReadEnd(const v1::Status& in, absl::Status* out);
absl::Status ReadSampledTokens(const char* field,
                               const google::protobuf::RepeatedPtrField<v1::SampledToken>& in,
                               int64_t limit, std::vector<SampledToken>* out);

// A registration or a hello, which have the transport in fields of different names. Each has the
// terms as fields of its own, not as a message, because builds of every protocol look for the range
// where it has always been.
template <typename Message>
void FillTerms(const PeerTerms& in, Message* out) {
  out->set_protocol_min(in.protocol_min);
  out->set_protocol_max(in.protocol_max);
  out->set_kv_class(in.kv_class);
  out->set_numerics_id(in.numerics_id);
  out->set_kv_shard(in.shard.index);
  out->set_kv_shards(in.shard.count);
}
template <typename Message>
absl::StatusOr<PeerTerms> ReadTerms(const Message& in, const std::string& transport) {
  TANDEM_RETURN_IF_ERROR(CheckRange("protocol_min", in.protocol_min(), 1, INT32_MAX));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("protocol_max", in.protocol_max(), in.protocol_min(), INT32_MAX));
  TANDEM_RETURN_IF_ERROR(CheckText("kv_class", in.kv_class()));
  TANDEM_RETURN_IF_ERROR(CheckText("numerics_id", in.numerics_id()));
  TANDEM_RETURN_IF_ERROR(CheckText("transport", transport));
  // Builds before protocol 3 say nothing of shards: they are told of the protocol.
  const uint32_t shards = in.protocol_max() < 3 && in.kv_shards() == 0 ? 1 : in.kv_shards();
  TANDEM_RETURN_IF_ERROR(CheckRange("kv_shards", shards, 1, UINT16_MAX));
  TANDEM_RETURN_IF_ERROR(CheckRange("kv_shard", in.kv_shard(), 0, shards - 1));
  return PeerTerms{.protocol_min = in.protocol_min(),
                   .protocol_max = in.protocol_max(),
                   .kv_class = in.kv_class(),
                   .numerics_id = in.numerics_id(),
                   .transport = transport,
                   .shard = {.index = static_cast<uint16_t>(in.kv_shard()),
                             .count = static_cast<uint16_t>(shards)}};
}

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_FIELD_CHECKS_H_
