#include "services/router/running_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"
#include "services/router/router_core.h"

namespace tandem {
namespace {

// What a front end may leave waiting without asking the budget, and by how much more it asks.
constexpr int64_t kIncludedBytes = int64_t{64} << 10;
constexpr int64_t kChargeBytes = int64_t{64} << 10;

int64_t BytesOf(const std::vector<SampledToken>& tokens) {
  int64_t bytes = 0;
  for (const SampledToken& token : tokens) {
    bytes += static_cast<int64_t>(sizeof(token) + token.top.size() * sizeof(TokenLogprob));
  }
  return bytes;
}

int64_t BytesOf(const CallOutput& output) {
  int64_t bytes = sizeof(output);
  if (const auto* token = std::get_if<ChoiceOutput>(&output)) {
    bytes += static_cast<int64_t>(token->text.size() + token->stop_string.size() +
                                  token->token.top.size() * sizeof(TokenLogprob));
  } else if (const auto* prompt = std::get_if<PromptOutput>(&output)) {
    bytes += BytesOf(prompt->prompt_logprobs);
  }
  return bytes;
}

int64_t QueuedBytes(const ClientRequest& asked) {
  int64_t bytes = std::ssize(asked.spec.token_ids) * kQueuedTokenBytes +
                  std::ssize(asked.spec.choices) * kQueuedChoiceBytes +
                  std::ssize(asked.spec.sampling.logit_bias) * kQueuedBiasBytes;
  for (const std::string& stop : asked.stop_strings) {
    bytes += static_cast<int64_t>(sizeof(stop) + stop.size());
  }
  return bytes;
}

}  // namespace

// Results of one prompt. The core keeps it until its end, and until then it keeps the call.
class RunningCall::PromptSink final : public RequestSink {
 public:
  PromptSink(RunningCall* call, int prompt, ClientRequest asked, std::vector<int32_t> eos_token_ids)
      : handle(call->core_->NewHandle()),
        token_ids(asked.spec.token_ids),
        metrics_(call->metrics_),
        clock_(call->clock_),
        arrived_us_(call->arrived_us_),
        prompt_(prompt),
        first_choice_(prompt * static_cast<int>(asked.spec.choices.size())),
        stop_token_ids_(asked.spec.sampling.stop_token_ids),
        eos_token_ids_(std::move(eos_token_ids)),
        last_token_us_(asked.spec.choices.size(), 0),
        queued_bytes_(QueuedBytes(asked)) {
    asked_ = std::move(asked);
  }

  ClientRequest TakeRequest(std::shared_ptr<RunningCall> call) {
    call_ = std::move(call);
    return std::move(asked_);
  }

  void OnPrompt(const PromptReport& prompt) override {
    Unqueue();
    submitted_us_ = prompt.first_submit_us;
    accepted_us_ = prompt.arrived_us;
    metrics_->cached_prompt_tokens.Increment(prompt.cached_tokens);
    metrics_->prompt_tokens.Increment(static_cast<double>(token_ids.size()));
    PromptOutput output{.prompt = prompt_,
                        .cached_tokens = prompt.cached_tokens,
                        .numerics_id = std::string(prompt.numerics_id)};
    output.prompt_logprobs.assign(prompt.prompt_logprobs.begin(), prompt.prompt_logprobs.end());
    call_->Deliver(std::move(output));
  }

  void OnDelta(const Delta& delta) override {
    ChoiceOutput output{.choice = first_choice_ + delta.choice,
                        .token = *delta.token,
                        .text = std::string(delta.text),
                        .finish = delta.finish};
    CountToken(delta.choice);
    if (delta.finish == FinishReason::kStop) NameStop(delta, &output);
    call_->Deliver(std::move(output));
  }

  void OnDone(const RequestReport& report) override {
    metrics_->e2e_seconds.Observe(Seconds(arrived_us_, clock_->NowUs()));
    metrics_->prompt_tokens_a_request.Observe(report.prompt_tokens);
    metrics_->generated_tokens_a_request.Observe(report.completion_tokens);
    // Moved: the call owns this, so that what this kept of it would keep both for ever.
    const std::shared_ptr<RunningCall> call = std::move(call_);
    call->OnPromptEnded(absl::OkStatus(), report);
  }

  void OnError(const absl::Status& status, const RequestReport& report) override {
    Unqueue();
    const std::shared_ptr<RunningCall> call = std::move(call_);
    call->OnPromptEnded(status, report);
  }

  const RouterCore::Handle handle;
  const std::vector<int32_t> token_ids;

 private:
  static double Seconds(int64_t from_us, int64_t to_us) {
    return static_cast<double>(to_us - from_us) * 1e-6;
  }

  void Unqueue() { call_->OnPromptUnqueued(std::exchange(queued_bytes_, 0)); }

  void CountToken(int32_t choice) {
    const int64_t now_us = clock_->NowUs();
    int64_t& last_us = last_token_us_[choice];
    if (last_us != 0) {
      metrics_->itl_seconds.Observe(Seconds(last_us, now_us));
    } else if (std::exchange(has_first_token_, true) == false) {
      metrics_->ttft_seconds.Observe(Seconds(arrived_us_, now_us));
      metrics_->ttft_text_seconds.Observe(Seconds(arrived_us_, accepted_us_));
      metrics_->ttft_queue_seconds.Observe(Seconds(accepted_us_, submitted_us_));
      metrics_->ttft_worker_seconds.Observe(Seconds(submitted_us_, now_us));
    }
    last_us = now_us;
    metrics_->generated_tokens.Increment();
  }

  void NameStop(const Delta& delta, ChoiceOutput* output) const {
    const auto has = [](const std::vector<int32_t>& ids, int32_t id) {
      return std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    if (!delta.stop_string.empty()) {
      output->stop_string = std::string(delta.stop_string);
    } else if (has(eos_token_ids_, delta.token->token)) {
      output->stopped_by_eos = true;
      output->stop_token = delta.token->token;
    } else if (has(stop_token_ids_, delta.token->token)) {
      output->stop_token = delta.token->token;
    }
  }

  RouterMetrics* const metrics_;
  const Clock* const clock_;
  const int64_t arrived_us_;
  const int prompt_;
  const int first_choice_;
  const std::vector<int32_t> stop_token_ids_;
  const std::vector<int32_t> eos_token_ids_;
  std::vector<int64_t> last_token_us_;  // By choice; 0: none yet.
  int64_t queued_bytes_;                // Charged until its first token.
  bool has_first_token_ = false;
  int64_t accepted_us_ = 0, submitted_us_ = 0;  // By the owner, to a worker; from OnPrompt on.
  ClientRequest asked_;                         // Until TakeRequest.
  std::shared_ptr<RunningCall> call_;           // From TakeRequest to the end.
};

RunningCall::RunningCall(RouterCore* core, RouterMetrics* metrics, MemoryBudget* budget,
                         const Clock* clock, std::string client, std::string label,
                         int64_t arrived_us, std::function<void()> on_output)
    : core_(core),
      metrics_(metrics),
      clock_(clock),
      label_(std::move(label)),
      arrived_us_(arrived_us),
      pending_charge_(budget, client),
      on_output_(std::move(on_output)),
      charge_(budget, std::move(client), [this] { OnCut(); }) {}

RunningCall::~RunningCall() = default;

absl::Status RunningCall::AddPrompt(ClientRequest asked, std::vector<int32_t> eos_token_ids) {
  {
    MutexLock lock(&mu_);
    queued_bytes_ += QueuedBytes(asked);
    TANDEM_RETURN_IF_ERROR(charge_.Set(queued_bytes_));
  }
  prompts_.push_back(std::make_shared<PromptSink>(this, static_cast<int>(prompts_.size()),
                                                  std::move(asked), std::move(eos_token_ids)));
  return absl::OkStatus();
}

void RunningCall::OnPromptUnqueued(int64_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(&mu_);
  queued_bytes_ -= bytes;
  // A call that was cut still holds something until all of it is gone: it cannot fail then.
  static_cast<void>(charge_.Set(queued_bytes_ + answer_bytes_));
}

// Under the budget's lock, on any thread.
void RunningCall::OnCut() {
  cut_ = true;
  CancelRequests();
}

void RunningCall::Start() {
  TANDEM_CHECK(!prompts_.empty());
  {
    MutexLock lock(&mu_);
    num_running_ = static_cast<int>(prompts_.size());
  }
  std::vector<RouterCore::NewRequest> requests;
  for (const std::shared_ptr<PromptSink>& prompt : prompts_) {
    requests.push_back({prompt->handle, prompt->TakeRequest(shared_from_this()), prompt});
  }
  core_->StartRequests(label_, std::move(requests));
  started_ = true;
  if (cancel_) CancelRequests();
}

const std::vector<int32_t>& RunningCall::prompt_token_ids(int prompt) const {
  return prompts_[prompt]->token_ids;
}

std::vector<CallOutput> RunningCall::Take(size_t most) {
  MutexLock lock(&mu_);
  std::vector<CallOutput> outputs;
  while (!pending_.empty() && outputs.size() < most) {
    pending_bytes_ -= BytesOf(pending_.front());
    outputs.push_back(std::move(pending_.front()));
    pending_.pop_front();
  }
  if (pending_.empty()) Forget();
  return outputs;
}

void RunningCall::KeepAnswer(int64_t bytes) {
  const int64_t charged = RoundUp(std::max<int64_t>(0, bytes - kIncludedBytes), kChargeBytes);
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (charged == answer_bytes_) return;
    status = charge_.Set(queued_bytes_ + charged);
    if (status.ok()) answer_bytes_ = charged;
  }
  if (status.ok()) return;
  Cancel(absl::ResourceExhaustedError(absl::StrFormat(
      "an answer that is not streamed takes %d bytes so far: %s; stream it, or ask for fewer "
      "choices, tokens or logprobs",
      bytes, status.message())));
}

bool RunningCall::overflowed() const {
  MutexLock lock(&mu_);
  return overflowed_;
}

// Nothing waits here any more.
void RunningCall::Forget() {
  std::deque<CallOutput>().swap(pending_);
  pending_bytes_ = charged_bytes_ = 0;
  static_cast<void>(pending_charge_.Set(0));
}

// What waits decides, not what comes: one output may be as large as a prompt.
bool RunningCall::MayWait(const CallOutput& output) {
  if (std::holds_alternative<CallEnd>(output)) return true;
  if (pending_bytes_ > kMaxPendingBytes) return false;
  const int64_t bytes = pending_bytes_ + BytesOf(output);
  const int64_t charged = RoundUp(std::max<int64_t>(0, bytes - kIncludedBytes), kChargeBytes);
  if (charged > charged_bytes_ && !pending_charge_.Set(charged).ok()) return false;
  charged_bytes_ = std::max(charged_bytes_, charged);
  return true;
}

void RunningCall::Deliver(CallOutput output) {
  std::function<void()> on_output;
  bool overflow = false;
  {
    MutexLock lock(&mu_);
    if (ended_) return;
    if (!MayWait(output)) {
      overflow = !std::exchange(overflowed_, true);
      Forget();  // Nobody hears it.
    } else if (!overflowed_ || std::holds_alternative<CallEnd>(output)) {
      if (pending_.empty()) on_output = on_output_;
      ended_ = std::holds_alternative<CallEnd>(output);
      pending_bytes_ += BytesOf(output);
      pending_.push_back(std::move(output));
    }
  }
  if (overflow) {
    metrics_->slow_readers.Increment();
    Cancel(absl::ResourceExhaustedError("the client did not read: too much output was waiting"));
  }
  if (on_output) on_output();
}

void RunningCall::OnPromptEnded(const absl::Status& status, const RequestReport& report) {
  CallEnd end;
  {
    MutexLock lock(&mu_);
    usage_.prompt_tokens += report.prompt_tokens;
    usage_.completion_tokens += report.completion_tokens;
    usage_.cached_tokens += report.cached_tokens;
    --num_running_;
    if (status.ok() && num_running_ > 0) return;
    end = CallEnd{.status = status, .usage = usage_};
    if (!status.ok() && cut_) {
      end.status = absl::ResourceExhaustedError(
          "memory: others needed the room of this request, which waited, or of its answer, which "
          "is "
          "not streamed (--memory-limit)");
    }
  }
  Deliver(std::move(end));
  if (!status.ok()) CancelRequests();
}

void RunningCall::Cancel(const absl::Status& why) {
  Deliver(CallEnd{.status = why});
  CancelRequests();
}

void RunningCall::Detach() {
  {
    MutexLock lock(&mu_);
    on_output_ = nullptr;
    ended_ = true;
    Forget();
  }
  CancelRequests();
}

// Every prompt that is cancelled says so here again. What comes before they have started, Start
// does.
void RunningCall::CancelRequests() {
  cancel_ = true;
  if (!started_ || cancelled_.exchange(true)) return;
  std::vector<RouterCore::Handle> handles;
  for (const std::shared_ptr<PromptSink>& prompt : prompts_) handles.push_back(prompt->handle);
  core_->CancelRequests(std::move(handles));
}

}  // namespace tandem
