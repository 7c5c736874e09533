// Checks of single message fields; private to the conversions of this folder.

#ifndef TANDEM_SERVICES_SERVER_FIELD_CHECKS_H_
#define TANDEM_SERVICES_SERVER_FIELD_CHECKS_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/status_macros.h"
#include "runtime/kv_cache/block_hash.h"
#include "runtime/protocol/sampled_token.h"
#include "services/server/convert.h"
#include "services/server/limits.h"

namespace tandem {

// InvalidArgument "field: 7, want 1 to 5".
absl::Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high);
// "field: 300 bytes, at most 256".
absl::Status CheckSize(const char* field, int64_t size, int64_t limit, const char* unit);
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

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_FIELD_CHECKS_H_
