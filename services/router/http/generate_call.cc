#include "services/router/http/generate_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/status_macros.h"
#include "services/router/api_error.h"
#include "services/router/api_limits.h"
#include "services/router/http/json_request.h"
#include "services/router/http/strict_json.h"

namespace tandem {
namespace {

// What parsing takes: at most 51 bytes a value, and 2.3 (of a chat 4.2) for each byte of texts,
// were measured.
int64_t JsonBytes(std::string_view body, bool chat) {
  return (chat ? 5 : 3) * static_cast<int64_t>(body.size()) + 64 * MostJsonValues(body);
}

}  // namespace

GenerateCall::GenerateCall(CallStarter* starter, std::shared_ptr<HttpExchange> exchange,
                           HttpRequest request, bool chat)
    : ClientCall(starter, {.client = request.client,
                           .label = request.id,
                           .arrived_us = starter->clock().NowUs(),
                           .on_output = nullptr}),
      exchange_(std::move(exchange)),
      request_id_(request.id),
      chat_(chat),
      request_(std::move(request)) {}

// The connection holds the call while it lasts.
void GenerateCall::WatchClient() {
  exchange_->OnLeft([self = shared_from_this()] { self->Leave(); });
}

absl::StatusOr<GenerateRequest> GenerateCall::Parse() {
  const HttpRequest request = *std::exchange(request_, std::nullopt);
  GenerateRequest parsed;
  TANDEM_RETURN_IF_ERROR(starter()->RunCharged(
      request.client, "parsing the body", JsonBytes(request.body, chat_), [&]() -> absl::Status {
        TANDEM_ASSIGN_OR_RETURN(
            parsed, chat_ ? ParseChatRequest(request.body) : ParseCompletionRequest(request.body));
        return absl::OkStatus();
      }));
  return parsed;
}

void GenerateCall::OnBegun(const GenerateRequest& request, const RunningCall& running) {
  stream_ = request.stream;
  AnswerOptions options;
  options.chat = chat_;
  options.id = absl::StrCat(chat_ ? "chatcmpl-" : "cmpl-", request_id_);
  options.model = starter()->model().served_name;
  options.created_s = WallClockSeconds();
  options.num_prompts = running.num_prompts();
  options.num_choices = static_cast<int>(request.n);
  options.include_usage = request.include_usage;
  options.return_token_ids = request.return_token_ids;
  options.num_logprobs = static_cast<int>(request.num_logprobs.value_or(-1));
  options.num_prompt_logprobs = static_cast<int>(request.num_prompt_logprobs.value_or(-1));
  options.names = TokenNames(starter()->tokenizer(), request.tokens_as_ids);
  options.prompt_token_ids = [&running](int prompt) -> const std::vector<int32_t>& {
    return running.prompt_token_ids(prompt);
  };
  answer_ = std::make_unique<JsonAnswer>(std::move(options));
}

void GenerateCall::OnOutput() {
  exchange_->Post([self = std::static_pointer_cast<GenerateCall>(shared_from_this())] {
    const std::vector<CallOutput> outputs = self->Take();
    if (self->stream_) {
      self->ServeStream(outputs);
    } else {
      self->ServeOnce(outputs);
    }
  });
}

void GenerateCall::ServeStream(const std::vector<CallOutput>& outputs) {
  std::string bytes;
  bool ended = false;
  for (const CallOutput& output : outputs) {
    const auto* end = std::get_if<CallEnd>(&output);
    ended = end != nullptr;
    // Before the first byte an error still has a status of its own.
    if (ended && !end->status.ok() && !stream_started_ && bytes.empty()) {
      return SendError(end->status);
    }
    answer_->AppendEvents(output, &bytes);
  }
  if (!bytes.empty() && !std::exchange(stream_started_, true)) {
    exchange_->StartStream(200, "text/event-stream; charset=utf-8",
                           {{"Cache-Control", "no-cache"}});
  }
  exchange_->Write(std::move(bytes));
  if (ended) exchange_->EndStream();
}

void GenerateCall::ServeOnce(const std::vector<CallOutput>& outputs) {
  if (outputs.empty()) return;  // All of it may have been taken before, and the answer sent.
  for (const CallOutput& output : outputs) {
    const auto* end = std::get_if<CallEnd>(&output);
    if (end != nullptr && !end->status.ok()) return SendError(end->status);
    answer_->Add(output);
    if (end == nullptr) continue;
    std::string json = answer_->Json();
    answer_.reset();
    KeepAnswer(0);  // The connection charges what it writes.
    return exchange_->Send(200, "application/json", std::move(json));
  }
  KeepAnswer(kAnswerCopies * answer_->num_bytes());
}

void GenerateCall::SendError(const absl::Status& status) {
  HttpExchange::Headers headers;
  const int http_status = HttpStatusOf(status);
  if (http_status == 429 || http_status == 503) headers.emplace_back("Retry-After", "1");
  exchange_->Send(http_status, "application/json", ErrorJson(status), std::move(headers));
}

}  // namespace tandem
