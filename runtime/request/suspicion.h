// Which requests kill the workers that compute them.
//
// A death counts for every stream that the lost worker could have been computing, at the positions
// that it had begun. That is too many of them, so it decides nothing yet: a stream with
// kDeathsBeforeRunningAlone deaths at one place gets a worker where no other prompt of ours is, and
// small chunks, until it has a token. From then on who is blamed is who was there. Who gets past a
// place is not what made it deadly; a kill from outside is nobody's deed.
//
// What is known of a stream stands in the stream; this reads it, adds to it and judges it. One
// thread.

#ifndef TANDEM_RUNTIME_REQUEST_SUSPICION_H_
#define TANDEM_RUNTIME_REQUEST_SUSPICION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/fleet/fleet.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/request/request_counters.h"
#include "runtime/request/request_state.h"

namespace tandem {

// At one place of a stream, in a row: it did not get past it in between.
inline constexpr int32_t kDeathsBeforeRunningAlone = 2;
inline constexpr int32_t kDeathsBeforePoison = 4;

class Suspicion {
 public:
  // `fleet` outlives this.
  Suspicion(const Fleet* fleet, const LivenessTimes& times) : fleet_(*fleet), times_(times) {}

  // ---- What happens to a stream ----

  // The stream's attempt, which it still has, is over with `worker` or a step of that.
  void AddDeath(const RequestState& request, const WorkerId& worker, ResumeReason reason,
                int64_t now_us, StreamState* stream) const;
  // A worker says that it begins to compute this of its prompt.
  static void BeginChunk(const WorkerId& worker, const ChunkBegun& chunk, StreamState* stream);
  // A life of this name tells how earlier ones ended.
  void LearnEnds(const std::string& name, StreamState* stream) const;
  // Workers that were heard again have not died: while they are known.
  void ForgetOutlived(StreamState* stream) const;

  // ---- What follows ----

  // It gets a worker for itself.
  bool IsSuspect(const StreamState& stream) const;
  // Choices of a suspect are tried one by one: each would else end workers of its own.
  bool SiblingOnTrial(const RequestState& request, const StreamState& stream) const;

  enum class Guilt : uint8_t { kNotProven, kUndecided, kProven };
  // Not kNotProven: `evidence` is the deaths that it rests on.
  Guilt Judge(const StreamState& stream, int64_t now_us, std::vector<WorkerDeath>* evidence) const;
  static absl::Status PoisonError(const std::vector<WorkerDeath>& evidence);

 private:
  // The deaths that this position may have caused, oldest first.
  std::vector<WorkerDeath> DeathsAt(const StreamState& stream, int32_t position) const;
  // It was heard, and not stuck, after what was taken for its death.
  bool Outlived(const WorkerDeath& death) const;
  bool IsCertain(const WorkerDeath& death, int64_t now_us) const;
  // The positions with which the stream may have ended `worker`.
  static std::pair<int32_t, int32_t> PlaceOf(const RequestState& request, const StreamState& stream,
                                             const WorkerId& worker, ResumeReason reason);

  const Fleet& fleet_;
  const LivenessTimes times_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_SUSPICION_H_
