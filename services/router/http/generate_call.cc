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

GenerateCall::GenerateCall(Generator* generator, std::shared_ptr<HttpExchange> exchange,
                           HttpRequest request, bool chat)
    : ClientCall(generator, {.client = request.client,
                             .label = request.id,
                             .arrived_us = generator->clock().NowUs(),
                             .on_news = nullptr}),
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
  TANDEM_RETURN_IF_ERROR(generator()->RunCharged(
      request.client, "parsing the body", JsonBytes(request.body, chat_), [&]() -> absl::Status {
        TANDEM_ASSIGN_OR_RETURN(
            parsed, chat_ ? ParseChatRequest(request.body) : ParseCompletionRequest(request.body));
        return absl::OkStatus();
      }));
  return parsed;
}

void GenerateCall::OnBegun(const GenerateRequest& request, const Generation& generation) {
  stream_ = request.stream;
  AnswerOptions options;
  options.chat = chat_;
  options.id = absl::StrCat(chat_ ? "chatcmpl-" : "cmpl-", request_id_);
  options.model = generator()->model().served_name;
  options.created_s = WallClockSeconds();
  options.num_prompts = generation.num_prompts();
  options.num_choices = static_cast<int>(request.n);
  options.include_usage = request.include_usage;
  options.return_token_ids = request.return_token_ids;
  options.num_logprobs = static_cast<int>(request.num_logprobs.value_or(-1));
  options.num_prompt_logprobs = static_cast<int>(request.num_prompt_logprobs.value_or(-1));
  options.names = TokenNames(generator()->tokenizer(), request.tokens_as_ids);
  options.prompt_token_ids = [&generation](int prompt) -> const std::vector<int32_t>& {
    return generation.prompt_token_ids(prompt);
  };
  answer_ = std::make_unique<JsonAnswer>(std::move(options));
}

void GenerateCall::OnNews() {
  exchange_->Post([self = std::static_pointer_cast<GenerateCall>(shared_from_this())] {
    const std::vector<GenerationNews> news = self->Take();
    if (self->stream_) {
      self->ServeStream(news);
    } else {
      self->ServeWhole(news);
    }
  });
}

void GenerateCall::ServeStream(const std::vector<GenerationNews>& all) {
  std::string bytes;
  bool ended = false;
  for (const GenerationNews& news : all) {
    const auto* end = std::get_if<EndNews>(&news);
    ended = end != nullptr;
    // Before the first byte an error still has a status of its own.
    if (ended && !end->status.ok() && !stream_started_ && bytes.empty()) {
      return SendError(end->status);
    }
    bytes += answer_->StreamEvents(news);
  }
  if (!bytes.empty() && !std::exchange(stream_started_, true)) {
    exchange_->StartStream(200, "text/event-stream; charset=utf-8",
                           {{"Cache-Control", "no-cache"}});
  }
  exchange_->Write(std::move(bytes));
  if (ended) exchange_->EndStream();
}

void GenerateCall::ServeWhole(const std::vector<GenerationNews>& all) {
  if (all.empty()) return;  // All of it may have been taken before, and the answer sent.
  for (const GenerationNews& news : all) {
    const auto* end = std::get_if<EndNews>(&news);
    if (end != nullptr && !end->status.ok()) return SendError(end->status);
    answer_->Add(news);
    if (end == nullptr) continue;
    std::string whole = answer_->Whole();
    answer_.reset();
    KeepAnswer(0);  // The connection charges what it writes.
    return exchange_->Send(200, "application/json", std::move(whole));
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
