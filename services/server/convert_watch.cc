#include <utility>

#include "absl/strings/str_format.h"
#include "services/server/convert.h"
#include "services/server/field_checks.h"

namespace tandem {

namespace {

// Sums of a few of them still fit, here in 64 bits and there in 32.
constexpr int64_t kMaxCount = int64_t{1} << 56;
constexpr int32_t kMaxSequenceCount = 1 << 24;

proto::EndCause ToProto(EndCause cause) {
  switch (cause) {
    case EndCause::kOutside:
      return proto::END_CAUSE_OUTSIDE;
    case EndCause::kCrash:
      return proto::END_CAUSE_CRASH;
    case EndCause::kMemory:
      return proto::END_CAUSE_MEMORY;
  }
  return proto::END_CAUSE_UNSPECIFIED;
}

void Fill(const WorkerRegistration& in, proto::WorkerRegistration* out) {
  ToProto(in.worker, out->mutable_worker());
  out->set_role(in.role == WorkerRole::kPrefill  ? proto::WORKER_ROLE_PREFILL
                : in.role == WorkerRole::kDecode ? proto::WORKER_ROLE_DECODE
                                                 : proto::WORKER_ROLE_HYBRID);
  out->set_model(in.model);
  FillTerms(in.terms, out);
  out->set_block_tokens(in.kv.block_tokens);
  out->set_max_model_tokens(in.max_model_tokens);
  out->set_max_sequences(in.max_sequences);
  out->set_num_blocks(in.kv.num_blocks);
  out->set_block_bytes(in.kv.block_bytes);
  out->set_sequence_blocks(in.sequence_blocks);
  out->set_kv_transport(in.terms.transport);
  out->set_supervised(in.supervised);
  for (const EndedLife& in_life : in.ended_lives) {
    proto::EndedLife* const life = out->add_ended_lives();
    life->set_incarnation(in_life.incarnation);
    life->set_cause(ToProto(in_life.cause));
  }
}

absl::StatusOr<EndedLife> Read(const proto::EndedLife& in) {
  TANDEM_RETURN_IF_ERROR(CheckPresent("ended_lives.incarnation", in.incarnation() != 0));
  EndedLife out{.incarnation = in.incarnation()};
  switch (in.cause()) {
    case proto::END_CAUSE_OUTSIDE:
      out.cause = EndCause::kOutside;
      return out;
    case proto::END_CAUSE_CRASH:
      out.cause = EndCause::kCrash;
      return out;
    case proto::END_CAUSE_MEMORY:
      out.cause = EndCause::kMemory;
      return out;
    default:  // A cause that only a later build knows: what was computed may be to blame.
      out.cause = EndCause::kCrash;
      return out;
  }
}

absl::StatusOr<WorkerRegistration> Read(const proto::WorkerRegistration& in) {
  WorkerRegistration out;
  TANDEM_ASSIGN_OR_RETURN(out.worker, FromProto(in.worker()));
  switch (in.role()) {
    case proto::WORKER_ROLE_PREFILL:
      out.role = WorkerRole::kPrefill;
      break;
    case proto::WORKER_ROLE_DECODE:
      out.role = WorkerRole::kDecode;
      break;
    case proto::WORKER_ROLE_HYBRID:
      out.role = WorkerRole::kHybrid;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("role: %d is no role", static_cast<int>(in.role())));
  }
  TANDEM_RETURN_IF_ERROR(CheckText("model", in.model()));
  TANDEM_ASSIGN_OR_RETURN(out.terms, ReadTerms(in, in.kv_transport()));
  TANDEM_RETURN_IF_ERROR(CheckRange("block_tokens", in.block_tokens(), kHashTokens, 1 << 16));
  if (in.block_tokens() % kHashTokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("block_tokens: %d, want a multiple of %d", in.block_tokens(), kHashTokens));
  }
  TANDEM_RETURN_IF_ERROR(
      CheckRange("max_model_tokens", in.max_model_tokens(), 1, kMaxRequestTokens));
  TANDEM_RETURN_IF_ERROR(CheckRange("max_sequences", in.max_sequences(), 1, kMaxSequenceCount));
  TANDEM_RETURN_IF_ERROR(CheckRange("num_blocks", in.num_blocks(), 1, INT32_MAX));
  TANDEM_RETURN_IF_ERROR(CheckRange("block_bytes", in.block_bytes(), 1, kMaxCount));
  TANDEM_RETURN_IF_ERROR(CheckRange("sequence_blocks", in.sequence_blocks(), 0, INT32_MAX));
  out.model = in.model();
  out.kv.block_tokens = in.block_tokens();
  out.max_model_tokens = in.max_model_tokens();
  out.max_sequences = in.max_sequences();
  out.kv.num_blocks = in.num_blocks();
  out.kv.block_bytes = in.block_bytes();
  out.sequence_blocks = in.sequence_blocks();
  out.supervised = in.supervised();
  TANDEM_RETURN_IF_ERROR(CheckSize("ended_lives", in.ended_lives_size(), kMaxEndedLives, "lives"));
  for (const proto::EndedLife& life : in.ended_lives()) {
    TANDEM_ASSIGN_OR_RETURN(out.ended_lives.emplace_back(), Read(life));
  }
  return out;
}

void Fill(const Heartbeat& in, proto::Heartbeat* out) {
  proto::WorkerLoad* load = out->mutable_load();
  proto::BlockCounts* blocks = load->mutable_blocks();
  blocks->set_free(in.load.blocks.free);
  blocks->set_held(in.load.blocks.held);
  blocks->set_cached(in.load.blocks.cached);
  blocks->set_in_flight(in.load.blocks.in_flight);
  blocks->set_quarantined(in.load.blocks.quarantined);
  blocks->set_total(in.load.blocks.total);
  load->set_running_sequences(in.load.running_sequences);
  load->set_waiting_sequences(in.load.waiting_sequences);
  load->set_waiting_prompt_tokens(in.load.waiting_prompt_tokens);
  load->set_has_work(in.load.has_work);
  load->set_since_progress_us(in.load.since_progress_us);
  out->set_draining(in.draining);
}

absl::StatusOr<Heartbeat> Read(const proto::Heartbeat& in) {
  Heartbeat out{.draining = in.draining()};
  const proto::BlockCounts& blocks = in.load().blocks();
  const std::pair<int64_t, int64_t*> counts[] = {
      {blocks.free(), &out.load.blocks.free},
      {blocks.held(), &out.load.blocks.held},
      {blocks.cached(), &out.load.blocks.cached},
      {blocks.in_flight(), &out.load.blocks.in_flight},
      {blocks.quarantined(), &out.load.blocks.quarantined},
      {blocks.total(), &out.load.blocks.total},
      {in.load().waiting_prompt_tokens(), &out.load.waiting_prompt_tokens},
      {in.load().since_progress_us(), &out.load.since_progress_us}};
  for (const auto& [value, target] : counts) {
    TANDEM_RETURN_IF_ERROR(CheckRange("load: a count", value, 0, kMaxCount));
    *target = value;
  }
  TANDEM_RETURN_IF_ERROR(
      CheckRange("load.running_sequences", in.load().running_sequences(), 0, kMaxSequenceCount));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("load.waiting_sequences", in.load().waiting_sequences(), 0, kMaxSequenceCount));
  out.load.running_sequences = in.load().running_sequences();
  out.load.waiting_sequences = in.load().waiting_sequences();
  out.load.has_work = in.load().has_work();
  return out;
}

void FillHashes(const std::vector<BlockHash>& in, std::string* out) {
  out->reserve(in.size() * sizeof(BlockHash::bytes));
  for (const BlockHash& hash : in) {
    out->append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
  }
}

absl::Status ReadHashes(const char* field, const std::string& in, std::vector<BlockHash>* out) {
  constexpr size_t kHashBytes = sizeof(BlockHash::bytes);
  if (in.size() % kHashBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, want a multiple of %d", field, in.size(), kHashBytes));
  }
  out->resize(in.size() / kHashBytes);
  for (size_t i = 0; i < out->size(); ++i) {
    std::memcpy((*out)[i].bytes.data(), in.data() + i * kHashBytes, kHashBytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<KvEvents> Read(const proto::KvEvents& in) {
  KvEvents out{.first_sequence = in.first_sequence(), .snapshot = in.snapshot()};
  TANDEM_RETURN_IF_ERROR(ReadHashes("stored", in.stored(), &out.stored));
  TANDEM_RETURN_IF_ERROR(ReadHashes("removed", in.removed(), &out.removed));
  TANDEM_RETURN_IF_ERROR(CheckSize("stored and removed",
                                   static_cast<int64_t>(out.stored.size() + out.removed.size()),
                                   kMaxHashesPerEvent, "hashes"));
  return out;
}

}  // namespace

void ToProto(const WatchUpdate& in, proto::WatchEvent* out) {
  if (const auto* registration = std::get_if<WorkerRegistration>(&in)) {
    Fill(*registration, out->mutable_registration());
  } else if (const auto* heartbeat = std::get_if<Heartbeat>(&in)) {
    Fill(*heartbeat, out->mutable_heartbeat());
  } else {
    const KvEvents& events = std::get<KvEvents>(in);
    out->mutable_kv_events()->set_first_sequence(events.first_sequence);
    out->mutable_kv_events()->set_snapshot(events.snapshot);
    FillHashes(events.stored, out->mutable_kv_events()->mutable_stored());
    FillHashes(events.removed, out->mutable_kv_events()->mutable_removed());
  }
}

absl::StatusOr<WatchUpdate> FromProto(const proto::WatchEvent& in) {
  switch (in.event_case()) {
    case proto::WatchEvent::kRegistration: {
      TANDEM_ASSIGN_OR_RETURN(WorkerRegistration registration, Read(in.registration()));
      return WatchUpdate(std::move(registration));
    }
    case proto::WatchEvent::kHeartbeat: {
      TANDEM_ASSIGN_OR_RETURN(Heartbeat heartbeat, Read(in.heartbeat()));
      return WatchUpdate(heartbeat);
    }
    case proto::WatchEvent::kKvEvents: {
      TANDEM_ASSIGN_OR_RETURN(KvEvents events, Read(in.kv_events()));
      return WatchUpdate(std::move(events));
    }
    case proto::WatchEvent::EVENT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("watch event: none that this build knows");
}

}  // namespace tandem
