#include "services/router/call_starter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/random.h"
#include "runtime/base/status_macros.h"
#include "services/router/api_error.h"
#include "services/router/api_limits.h"
#include "services/router/text_adapter.h"

namespace tandem {
namespace {

template <typename T>
absl::StatusOr<std::unique_ptr<T>> OrNull(absl::StatusOr<std::unique_ptr<T>> loaded) {
  if (absl::IsNotFound(loaded.status())) return std::unique_ptr<T>();
  return loaded;
}

// What encoding a long text at once takes; who takes as much runs one at a time.
constexpr int64_t kLargeBytes = static_cast<int64_t>(kLongTextBytes) * Tokenizer::kEncodingFactor;
// What a template's engine takes for a value of the messages: at most 330 were measured, for lists
// in lists.
constexpr int64_t kRenderedValueBytes = 352;

// Client text that the tokenizer or the template does not take.
absl::Status AtField(const absl::Status& status, std::string_view field) {
  return status.code() == absl::StatusCode::kInvalidArgument ||
                 status.code() == absl::StatusCode::kResourceExhausted
             ? InvalidField(field, std::string(status.message()))
             : status;
}

}  // namespace

absl::StatusOr<ModelText> LoadModelText(const ModelInfo& model) {
  ModelText text;
  TANDEM_ASSIGN_OR_RETURN(text.tokenizer, OrNull(Tokenizer::Create(model.folder)));
  if (text.tokenizer == nullptr) return text;
  const GenerationConfig& ids = model.generation;
  ChatTemplate::ModelTokens tokens;
  tokens.bos = text.tokenizer->TokenText(ids.bos_token_id);
  if (!ids.eos_token_ids.empty()) tokens.eos = text.tokenizer->TokenText(ids.eos_token_ids[0]);
  TANDEM_ASSIGN_OR_RETURN(text.chat_template, OrNull(ChatTemplate::Create(model.folder, tokens)));
  return text;
}

CallStarter::CallStarter(const CallStarterOptions& options, const ModelInfo* model,
                         const ModelText* text, RouterCore* core, RouterMetrics* metrics,
                         MemoryBudget* budget, const Clock* clock)
    : options_(options),
      model_(model),
      text_(text),
      core_(core),
      metrics_(metrics),
      budget_(budget),
      clock_(clock),
      next_seed_(options.seed) {}

int64_t CallStarter::max_model_tokens() const {
  const int64_t of_workers = core_->max_model_tokens();
  return of_workers > 0 ? of_workers : model_->max_model_tokens;
}

absl::Status CallStarter::RunCharged(const std::string& client, const std::string& what,
                                     int64_t bytes, const std::function<absl::Status()>& work) {
  if (bytes > budget_->limit_bytes() / 4) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s would take %d bytes of memory, at most %d may be used, a quarter of "
                        "--memory-limit",
                        what, bytes, budget_->limit_bytes() / 4));
  }
  const auto run = [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const auto held, budget_->Hold(client, bytes));
    return work();
  };
  if (bytes < kLargeBytes) return run();
  MutexLock lock(&large_);
  return run();
}

absl::StatusOr<std::vector<int32_t>> CallStarter::EncodeText(std::string_view text,
                                                             bool add_special_tokens,
                                                             std::string_view field,
                                                             const std::string& client) {
  const int64_t context = max_model_tokens();
  const auto most = static_cast<size_t>(std::max<int64_t>(context - 1, 0));
  const auto refused = [&](const absl::Status& status) {
    if (!absl::IsOutOfRange(status)) return AtField(status, field);
    return WithApiCode(
        InvalidField(field, absl::StrFormat("%s; the context of %d tokens must also hold at least "
                                            "one generated token",
                                            std::string(status.message()), context)),
        kContextLengthExceeded);
  };
  const absl::StatusOr<size_t> piece_bytes = text_->tokenizer->LargestPieceBytes(text, most);
  if (!piece_bytes.ok()) return refused(piece_bytes.status());
  std::vector<int32_t> ids;
  TANDEM_RETURN_IF_ERROR(RunCharged(
      client, absl::StrCat("encoding ", *piece_bytes, " bytes of text that cannot be cut"),
      static_cast<int64_t>(*piece_bytes) * Tokenizer::kEncodingFactor, [&]() -> absl::Status {
        absl::StatusOr<std::vector<int32_t>> encoded =
            text_->tokenizer->Encode(text, add_special_tokens, most);
        if (!encoded.ok()) return refused(encoded.status());
        ids = *std::move(encoded);
        return absl::OkStatus();
      }));
  return ids;
}

absl::StatusOr<std::vector<int32_t>> CallStarter::EncodeConversation(const GenerateRequest& request,
                                                                     const std::string& client) {
  if (text_->chat_template == nullptr) {
    return InvalidField(request.names.prompt,
                        "the model has no chat template; ask /v1/completions, with a prompt that "
                        "is a text or token ids");
  }
  ChatTemplate::Options options;
  options.add_generation_prompt = request.add_generation_prompt;
  options.variables_json = request.template_variables_json;
  options.now_s = WallClockSeconds();
  const size_t json_bytes = request.messages_json.size() + request.template_variables_json.size();
  std::string text;
  TANDEM_RETURN_IF_ERROR(RunCharged(
      client, "rendering the messages",
      5 * static_cast<int64_t>(json_bytes) + kRenderedValueBytes * request.num_json_values,
      [&]() -> absl::Status {
        absl::StatusOr<std::string> rendered =
            text_->chat_template->Render(request.messages_json, options);
        if (!rendered.ok()) return AtField(rendered.status(), request.names.prompt);
        text = *std::move(rendered);
        return absl::OkStatus();
      }));
  return EncodeText(text, request.add_special_tokens.value_or(false), request.names.prompt, client);
}

absl::StatusOr<std::vector<std::vector<int32_t>>> CallStarter::Encode(
    const GenerateRequest& request, const std::string& client) {
  std::vector<std::vector<int32_t>> encoded;
  if (!request.messages_json.empty()) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeConversation(request, client));
    encoded.push_back(std::move(ids));
    return encoded;
  }
  for (const Prompt& prompt : request.prompts) {
    if (const auto* ids = std::get_if<std::vector<int64_t>>(&prompt)) {
      encoded.emplace_back(ids->begin(), ids->end());  // CheckRequest has seen them.
      continue;
    }
    if (text_->tokenizer == nullptr) {
      return InvalidField(request.names.prompt,
                          "the model has no tokenizer; the prompt must be token ids");
    }
    TANDEM_ASSIGN_OR_RETURN(
        std::vector<int32_t> ids,
        EncodeText(std::get<std::string>(prompt), request.add_special_tokens.value_or(true),
                   request.names.prompt, client));
    encoded.push_back(std::move(ids));
  }
  return encoded;
}

absl::StatusOr<std::shared_ptr<RunningCall>> CallStarter::Begin(const GenerateRequest& request,
                                                                Call call) {
  if (call.label.size() > kMaxRequestIdBytes) {
    return InvalidField("request_id", absl::StrCat("has ", call.label.size(),
                                                   " bytes, want at most ", kMaxRequestIdBytes));
  }
  TANDEM_RETURN_IF_ERROR(CheckRequest(request, *model_, options_.isolate_cache));
  if (text_->tokenizer == nullptr && !request.stop.empty()) {
    return InvalidField(request.names.stop,
                        "the model has no tokenizer, so text cannot stop it; use stop token ids");
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> prompts, Encode(request, call.client));

  auto running =
      std::make_shared<RunningCall>(core_, metrics_, budget_, clock_, call.client, call.label,
                                    call.arrived_us, std::move(call.on_output));
  const int64_t spent_us = clock_->NowUs() - call.arrived_us;
  if (call.time_left_us > 0 && spent_us >= call.time_left_us) {
    return absl::DeadlineExceededError("the deadline passed before the request could start");
  }
  const BlockHash hash_root = HashRoot(model_->served_name, "", request.cache_salt.value_or(""));
  int64_t prompt_tokens = 0, max_tokens = 0;
  for (std::vector<int32_t>& ids : prompts) {
    const uint64_t drawn = Mix64(next_seed_.fetch_add(0x9E3779B97F4A7C15u));
    ClientRequest asked;
    asked.client = call.client;
    TANDEM_ASSIGN_OR_RETURN(const SamplingParams sampling,
                            MakeSamplingParams(request, *model_, static_cast<int64_t>(ids.size()),
                                               max_model_tokens(), drawn));
    prompt_tokens += static_cast<int64_t>(ids.size());
    max_tokens += sampling.max_tokens;
    asked.open_ended = !request.max_tokens.has_value();
    asked.stop_strings = request.stop;
    asked.make_detokenizer =
        MakeDetokenizerFactory(text_->tokenizer.get(), ids, request.skip_special_tokens);
    asked.spec = SpecOfPrompt(std::move(ids), static_cast<int32_t>(request.n));
    asked.spec.sampling = sampling;
    asked.spec.hash_root = hash_root;
    asked.model = model_->served_name;
    asked.spec.time_left_us =
        call.time_left_us > 0 ? std::min(call.time_left_us - spent_us, kMaxDeadlineUs) : 0;
    TANDEM_RETURN_IF_ERROR(running->AddPrompt(
        std::move(asked),
        request.ignore_eos ? std::vector<int32_t>() : model_->generation.eos_token_ids));
  }
  TANDEM_RETURN_IF_ERROR(
      CheckAnswerSize(request, prompt_tokens, max_tokens, budget_->limit_bytes()));
  if (!call.label.empty()) Remember({call.client, call.label}, running);
  running->Start();
  return running;
}

void CallStarter::Remember(ClientLabel label, const std::shared_ptr<RunningCall>& running) {
  MutexLock lock(&mu_);
  if (labelled_.size() >= next_sweep_) {
    std::erase_if(labelled_, [](const auto& entry) { return entry.second.expired(); });
    next_sweep_ = 2 * labelled_.size() + 64;
  }
  labelled_.emplace(std::move(label), running);
}

void CallStarter::Abort(const std::string& client, const std::string& label) {
  std::vector<std::shared_ptr<RunningCall>> found;
  {
    MutexLock lock(&mu_);
    const auto [begin, end] = labelled_.equal_range({client, label});
    for (auto it = begin; it != end; ++it) {
      if (auto running = it->second.lock()) found.push_back(std::move(running));
    }
    labelled_.erase(begin, end);
  }
  for (const auto& running : found) running->Cancel(absl::CancelledError("aborted"));
}

}  // namespace tandem
