// From a GenerateRequest to a RunningCall: checks it, renders the template, tokenizes once,
// settles the sampling parameters and starts one request per prompt.

#ifndef TANDEM_SERVICES_ROUTER_CALL_STARTER_H_
#define TANDEM_SERVICES_ROUTER_CALL_STARTER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/clock.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"
#include "services/router/generate_request.h"
#include "services/router/model_info.h"
#include "services/router/router_core.h"
#include "services/router/running_call.h"

namespace tandem {

// What text needs. A folder without tokenizer.json has neither: ids in, ids out.
struct ModelText {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
};

// Missing files are not errors; broken ones are.
absl::StatusOr<ModelText> LoadModelText(const ModelInfo& model);

struct CallStarterOptions {
  bool isolate_cache = false;  // Every request must have a cache_salt.
  uint64_t seed = 0;           // Decides the seeds drawn for requests without one.
};

class CallStarter {
 public:
  // Borrows everything that is pointed to.
  CallStarter(const CallStarterOptions& options, const ModelInfo* model, const ModelText* text,
              RouterCore* core, RouterMetrics* metrics, MemoryBudget* budget, const Clock* clock);

  // A client's call, not yet started.
  struct Call {
    std::string client;  // The client's address, where the front end knows it.
    std::string label;   // The client's id, for Abort.
    int64_t arrived_us = 0;
    int64_t time_left_us = 0;  // Until its deadline; 0: the owner's default.
    std::function<void()> on_output;
  };

  // Any thread but the router's and those of I/O: takes as long as tokenizing does. The call
  // is running when this returns. Errors name their field.
  absl::StatusOr<std::shared_ptr<RunningCall>> Begin(const GenerateRequest& request, Call call);

  // Runs `work`, called `what` in errors, which takes `bytes` of memory for as long as it runs, and
  // charges them to `client`; of large ones, one at a time. InvalidArgument if they are more than
  // a quarter of the budget, ResourceExhausted if they find no room; it is then not run. Threads as
  // above.
  absl::Status RunCharged(const std::string& client, const std::string& what, int64_t bytes,
                          const std::function<absl::Status()>& work) EXCLUDES(large_);

  // Ends this client's calls of that label with Cancelled. Any thread.
  void Abort(const std::string& client, const std::string& label) EXCLUDES(mu_);

  const ModelInfo& model() const { return *model_; }
  const Tokenizer* tokenizer() const { return text_->tokenizer.get(); }
  RouterCore& core() { return *core_; }
  RouterMetrics& metrics() { return *metrics_; }
  const Clock& clock() const { return *clock_; }
  // What the largest known worker holds; what the model does, while none is known.
  int64_t max_model_tokens() const;

 private:
  absl::StatusOr<std::vector<std::vector<int32_t>>> Encode(const GenerateRequest& request,
                                                           const std::string& client)
      EXCLUDES(large_);
  absl::StatusOr<std::vector<int32_t>> EncodeConversation(const GenerateRequest& request,
                                                          const std::string& client)
      EXCLUDES(large_);
  // Charges `client` for what it takes, and refuses what does not fit without encoding all of it.
  absl::StatusOr<std::vector<int32_t>> EncodeText(std::string_view text, bool add_special_tokens,
                                                  std::string_view field, const std::string& client)
      EXCLUDES(large_);
  using ClientLabel = std::pair<std::string, std::string>;  // A client, and what it calls a call.
  void Remember(ClientLabel label, const std::shared_ptr<RunningCall>& running) EXCLUDES(mu_);

  const CallStarterOptions options_;
  const ModelInfo* const model_;
  const ModelText* const text_;
  RouterCore* const core_;
  RouterMetrics* const metrics_;
  MemoryBudget* const budget_;
  const Clock* const clock_;
  std::atomic<uint64_t> next_seed_;

  Mutex large_;  // Held by the one large piece of work that runs.
  Mutex mu_;
  std::multimap<ClientLabel, std::weak_ptr<RunningCall>> labelled_ GUARDED_BY(mu_);
  size_t next_sweep_ GUARDED_BY(mu_) = 64;  // At that size the ended ones are forgotten.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_CALL_STARTER_H_
