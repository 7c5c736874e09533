// How many tokens each registered worker has room for. A stream may go to whoever offers enough, so
// the least offer that is enough stands for all workers that it fits.
//
// One thread. A value.

#ifndef TANDEM_RUNTIME_REQUEST_WORKER_OFFERS_H_
#define TANDEM_RUNTIME_REQUEST_WORKER_OFFERS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/fleet/fleet.h"

namespace tandem {

class WorkerOffers {
 public:
  // False: they are as they were.
  bool Update(const Fleet& fleet);

  // The least that a worker of the model offers for prompt and output, and is enough.
  std::optional<int64_t> Least(const std::string& model, int64_t tokens) const;
  // The same of prefill workers, of any model, for a prompt.
  std::optional<int64_t> LeastForPrompt(int64_t tokens) const;

 private:
  std::set<std::pair<std::string, int64_t>> offers_;  // By model.
  std::set<int64_t> prompt_offers_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_WORKER_OFFERS_H_
