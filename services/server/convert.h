// Protobuf messages to the runtime's structs and back.
//
// FromProto trusts nothing: sizes, ranges, enum values and relations between fields are checked
// before anything is allocated from them; InvalidArgument names the field and both numbers. What
// only a worker knows (vocabulary, context length, pool) it checks itself. ToProto of a struct
// that FromProto accepted is accepted again and gives the same struct.
//
// Any thread.

#ifndef TANDEM_SERVICES_SERVER_CONVERT_H_
#define TANDEM_SERVICES_SERVER_CONVERT_H_

#include <variant>

#include "absl/status/statusor.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/peer_messages.h"
#include "runtime/protocol/peer_terms.h"
#include "runtime/protocol/request_spec.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/protocol/sampled_token.h"
#include "tandem/v1/common.pb.h"
#include "tandem/v1/prefill.pb.h"
#include "tandem/v1/worker.pb.h"

namespace tandem {

namespace proto = v1;

// ---- Common ----
void ToProto(const AttemptId& in, proto::AttemptId* out);
void ToProto(const WorkerId& in, proto::WorkerId* out);
void ToProto(const RequestSpec& in, proto::RequestSpec* out);
void ToProto(const SampledToken& in, proto::SampledToken* out);
absl::StatusOr<AttemptId> FromProto(const proto::AttemptId& in);
absl::StatusOr<WorkerId> FromProto(const proto::WorkerId& in);
absl::StatusOr<RequestSpec> FromProto(const proto::RequestSpec& in);
absl::StatusOr<SampledToken> FromProto(const proto::SampledToken& in);

// ---- Router and worker ----

struct Heartbeat {
  WorkerLoad load;
  bool draining = false;  // Refuses new attempts and will leave.
};

using WatchUpdate = std::variant<WorkerRegistration, Heartbeat, KvEvents>;

void ToProto(const RouterCommand& in, proto::ToWorker* out);
void ToProto(const RouterEvent& in, proto::RouterEvent* out);
void ToProto(const StepBatch& in, proto::StepBatch* out);
void ToProto(const WatchUpdate& in, proto::WatchEvent* out);
absl::StatusOr<RouterCommand> FromProto(const proto::ToWorker& in);
absl::StatusOr<RouterEvent> FromProto(const proto::RouterEvent& in);
absl::StatusOr<StepBatch> FromProto(const proto::StepBatch& in);
absl::StatusOr<WatchUpdate> FromProto(const proto::WatchEvent& in);

// ---- Decode and prefill worker ----

// Opens a session, one from each side.
struct PrefillHello {
  PeerTerms terms;
  WorkerId worker;    // The sender.
  WorkerId expected;  // Whom the caller means; empty in the answer.
  std::string transport_address;
  bool operator==(const PrefillHello&) const = default;
};

void ToProto(const PrefillHello& in, proto::PrefillHello* out);
void ToProto(const DecodeToPrefill& in, proto::ToPrefill* out);
void ToProto(const PrefillToDecode& in, proto::ToDecode* out);
absl::StatusOr<PrefillHello> FromProto(const proto::PrefillHello& in);
// InvalidArgument for a Hello: it is read apart, as the first message.
absl::StatusOr<DecodeToPrefill> FromProto(const proto::ToPrefill& in);
absl::StatusOr<PrefillToDecode> FromProto(const proto::ToDecode& in);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_CONVERT_H_
