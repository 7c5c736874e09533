#include "runtime/request/suspicion.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tandem {

namespace {

// A stream keeps its last deaths. A verdict needs no more of them: it takes fewer at one place,
// and progress drops what lies before.
constexpr size_t kMaxDeaths = 8;

}  // namespace

bool Suspicion::Outlived(const WorkerDeath& death) const {
  if (death.kind == LossKind::kStepFailed) return false;
  const FleetWorker* const worker = fleet_.Find(death.worker);
  // What comes earlier may have been on its way.
  const int64_t from_us = death.at_us + times_.heartbeat_us / 2;
  // If it has become silent since, that is another death.
  return worker != nullptr && worker->heard_us > from_us &&
         fleet_.FaultOf(*worker, worker->heard_us) == WorkerFault::kNone;
}

void Suspicion::ForgetOutlived(StreamState* stream) const {
  std::erase_if(stream->deaths, [&](const WorkerDeath& death) { return Outlived(death); });
}

bool Suspicion::IsCertain(const WorkerDeath& death, int64_t now_us) const {
  const FleetWorker* const worker = fleet_.Find(death.worker);
  if (death.kind == LossKind::kStepFailed) return true;
  if (worker == nullptr) return true;  // Its next life has told what it will, or none has come.
  if (worker->registration.supervised && death.kind != LossKind::kHung) return false;
  return fleet_.FaultOf(*worker, now_us) != WorkerFault::kNone;
}

std::pair<int32_t, int32_t> Suspicion::PlaceOf(const RequestState& request,
                                               const StreamState& stream, const WorkerId& worker,
                                               ResumeReason reason) {
  if (stream.live_prompt_tokens == 0) {
    // The attempt has computed everything before the last token that was delivered.
    size_t fewest = std::numeric_limits<size_t>::max(), most = 0;
    for (const int32_t choice : stream.choices) {
      const size_t generated = request.choices[static_cast<size_t>(choice)].generated.size();
      fewest = std::min(fewest, generated);
      most = std::max(most, generated);
    }
    const int32_t begin = request.prompt_tokens() + static_cast<int32_t>(fewest) - 1;
    // What it had computed was said before.
    const bool exact = reason == ResumeReason::kStepFailed;
    return {begin, exact ? request.prompt_tokens() + static_cast<int32_t>(most) : kNoEnd};
  }
  if (!stream.chunk.has_value() || stream.chunk->worker != worker) {
    return {stream.num_computed, kNoEnd};
  }
  if (reason == ResumeReason::kStepFailed && worker == stream.worker) {
    return {stream.chunk->begin, stream.chunk->end};
  }
  // What else tells of the loss may overtake what the worker began since.
  if (reason != ResumeReason::kSessionLost) return {stream.chunk->begin, kNoEnd};
  // As much again: its last word may have been lost with the connection.
  const int64_t end = 2 * int64_t{stream.chunk->end} - stream.chunk->begin;
  return {stream.chunk->begin, static_cast<int32_t>(std::min<int64_t>(end, kNoEnd))};
}

void Suspicion::AddDeath(const RequestState& request, const WorkerId& worker, ResumeReason reason,
                         int64_t now_us, StreamState* stream) const {
  std::vector<WorkerDeath>& deaths = stream->deaths;
  // Each incarnation dies once, however often it is lost; its steps may fail one after the other.
  std::erase_if(deaths, [&](const WorkerDeath& death) {
    return (death.worker == worker && death.kind != LossKind::kStepFailed) || Outlived(death);
  });
  const LossKind kind = reason == ResumeReason::kStalled      ? LossKind::kHung
                        : reason == ResumeReason::kStepFailed ? LossKind::kStepFailed
                                                              : LossKind::kEnded;
  const std::optional<EndCause> cause =
      kind == LossKind::kEnded ? fleet_.CauseOf(worker) : std::nullopt;
  if (cause == EndCause::kOutside) return;
  if (deaths.size() == kMaxDeaths) {
    deaths.erase(
        std::min_element(deaths.begin(), deaths.end(),
                         [](const WorkerDeath& a, const WorkerDeath& b) { return a.end < b.end; }));
  }
  const auto [begin, end] = PlaceOf(request, *stream, worker, reason);
  deaths.push_back({.worker = worker,
                    .at_us = now_us,
                    .begin = begin,
                    .end = end,
                    .ran_alone = stream->runs_alone,
                    .kind = kind,
                    .cause = cause});
}

void Suspicion::LearnEnds(const std::string& name, StreamState* stream) const {
  for (WorkerDeath& death : stream->deaths) {
    if (death.worker.name != name || death.kind != LossKind::kEnded) continue;
    if (const auto cause = fleet_.CauseOf(death.worker)) death.cause = cause;
  }
  std::erase_if(stream->deaths,
                [](const WorkerDeath& death) { return death.cause == EndCause::kOutside; });
}

void Suspicion::BeginChunk(const WorkerId& worker, const ChunkBegun& chunk, StreamState* stream) {
  stream->chunk = {.worker = worker, .begin = chunk.first_position, .end = chunk.end_position};
  stream->num_computed = std::max(stream->num_computed, chunk.first_position);
  for (WorkerDeath& death : stream->deaths) {
    death.begin = std::max(death.begin, chunk.first_position);
  }
  std::erase_if(stream->deaths, [](const WorkerDeath& death) { return death.begin >= death.end; });
}

std::vector<WorkerDeath> Suspicion::DeathsAt(const StreamState& stream, int32_t position) const {
  std::vector<WorkerDeath> deaths;
  for (const WorkerDeath& death : stream.deaths) {
    const bool there = death.begin <= position && position < death.end;
    if (there && !Outlived(death)) deaths.push_back(death);
  }
  return deaths;
}

// The place that most of them share begins where one of them begins.
bool Suspicion::IsSuspect(const StreamState& stream) const {
  return std::any_of(stream.deaths.begin(), stream.deaths.end(), [&](const WorkerDeath& death) {
    return DeathsAt(stream, death.begin).size() >= kDeathsBeforeRunningAlone;
  });
}

bool Suspicion::SiblingOnTrial(const RequestState& request, const StreamState& stream) const {
  if (!IsSuspect(stream)) return false;
  return std::any_of(request.streams.begin(), request.streams.end(), [](const StreamState& other) {
    return other.running && other.runs_alone && other.live_prompt_tokens > 0;
  });
}

Suspicion::Guilt Suspicion::Judge(const StreamState& stream, int64_t now_us,
                                  std::vector<WorkerDeath>* evidence) const {
  constexpr int32_t kDeathsRunningAlone = kDeathsBeforePoison - kDeathsBeforeRunningAlone;
  Guilt guilt = Guilt::kNotProven;
  for (const WorkerDeath& death : stream.deaths) {
    std::vector<WorkerDeath> deaths = DeathsAt(stream, death.begin);
    if (deaths.size() < kDeathsBeforePoison ||
        !std::all_of(deaths.end() - kDeathsRunningAlone, deaths.end(),
                     [](const WorkerDeath& d) { return d.ran_alone; })) {
      continue;
    }
    const bool certain = std::all_of(deaths.begin(), deaths.end(),
                                     [&](const WorkerDeath& d) { return IsCertain(d, now_us); });
    *evidence = std::move(deaths);
    if (certain) return Guilt::kProven;
    guilt = Guilt::kUndecided;
  }
  return guilt;
}

absl::Status Suspicion::PoisonError(const std::vector<WorkerDeath>& evidence) {
  int32_t begin = 0, end = kNoEnd;
  std::vector<std::string> causes;
  for (const WorkerDeath& death : evidence) {
    begin = std::max(begin, death.begin);
    end = std::min(end, death.end);
    causes.emplace_back(death.kind == LossKind::kHung         ? "hung"
                        : death.kind == LossKind::kStepFailed ? "a step failed"
                        : death.cause.has_value()             ? EndCauseName(*death.cause)
                                                              : "for a reason not known");
  }
  const std::string last = end == kNoEnd ? "or after it" : absl::StrFormat("to %d", end - 1);
  return absl::InternalError(
      absl::StrFormat("%d workers in a row were lost, or a step of theirs, while they ran this "
                      "request, at token %d %s, the last %d "
                      "running it alone: %s",
                      evidence.size(), begin, last, kDeathsBeforePoison - kDeathsBeforeRunningAlone,
                      absl::StrJoin(causes, ", ")));
}

}  // namespace tandem
