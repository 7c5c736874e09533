// Which requests kill the workers that compute them.
//
// A death counts for every stream that the lost worker could have been computing. That is too many
// of them, so it decides nothing yet: after kDeathsBeforeAlone a stream gets a worker where no
// other prompt of ours is, until it has a token. From then on who is blamed is who was there.

#include <algorithm>

#include "runtime/request/request_owner_impl.h"

namespace tandem {

bool RequestOwner::Impl::Lives(const WorkerDeath& death, int64_t now_us) const {
  const FleetWorker* const worker = fleet_.Find(death.worker);
  return worker != nullptr && worker->heard_us > death.at_us &&
         fleet_.FaultOf(*worker, now_us) == WorkerFault::kNone;
}

bool RequestOwner::Impl::IsCertain(const WorkerDeath& death, int64_t now_us) const {
  const FleetWorker* const worker = fleet_.Find(death.worker);
  return worker == nullptr || fleet_.FaultOf(*worker, now_us) != WorkerFault::kNone;
}

void RequestOwner::Impl::AddDeath(StreamState* stream, const WorkerId& worker,
                                  int64_t now_us) const {
  std::vector<WorkerDeath>& deaths = stream->deaths;
  // Each incarnation dies once, however often it is lost.
  std::erase_if(deaths, [&](const WorkerDeath& death) {
    return death.worker == worker || Lives(death, now_us);
  });
  if (deaths.size() == kDeathsBeforePoison) deaths.erase(deaths.begin());
  deaths.push_back({.worker = worker, .at_us = now_us});
}

int32_t RequestOwner::Impl::NumDeaths(const StreamState& stream, int64_t now_us) const {
  return static_cast<int32_t>(
      std::count_if(stream.deaths.begin(), stream.deaths.end(),
                    [&](const WorkerDeath& death) { return !Lives(death, now_us); }));
}

bool RequestOwner::Impl::SiblingOnTrial(const RequestState& request, size_t stream,
                                        int64_t now_us) const {
  if (NumDeaths(request.streams[stream], now_us) < kDeathsBeforeAlone) return false;
  return std::any_of(request.streams.begin(), request.streams.end(), [](const StreamState& other) {
    return other.running && other.alone && other.live_prompt_tokens > 0;
  });
}

RequestOwner::Impl::Guilt RequestOwner::Impl::Judge(const StreamState& stream,
                                                    int64_t now_us) const {
  if (NumDeaths(stream, now_us) < kDeathsBeforePoison) return Guilt::kNotProven;
  const bool certain =
      std::all_of(stream.deaths.begin(), stream.deaths.end(),
                  [&](const WorkerDeath& death) { return IsCertain(death, now_us); });
  return certain ? Guilt::kProven : Guilt::kUndecided;
}

}  // namespace tandem
