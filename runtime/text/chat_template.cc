#include "runtime/text/chat_template.h"

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/text/border.h"

namespace tandem {
namespace {

// Empty if there is no such file.
absl::StatusOr<std::string> ReadOptionalFile(const std::string& path, size_t max_bytes) {
  absl::StatusOr<std::string> contents = ReadSmallFile(path, max_bytes);
  if (absl::IsNotFound(contents.status())) return std::string();
  return contents;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(const std::string& folder) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text,
                          ReadOptionalFile(folder + "/chat_template.jinja", kMaxTemplateBytes));
  TANDEM_ASSIGN_OR_RETURN(const std::string config,
                          ReadOptionalFile(folder + "/tokenizer_config.json", kMaxFileBytes));
  absl::StatusOr<std::unique_ptr<ChatTemplate>> made = Parse(text, config);
  if (made.ok()) return made;
  return absl::Status(made.status().code(),
                      absl::StrFormat("%s: %s", folder, std::string(made.status().message())));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view template_text,
                                                                  std::string_view config_json) {
  std::unique_ptr<ChatTemplate> made(new ChatTemplate());
  std::string error;
  TANDEM_RETURN_IF_ERROR(
      BorderStatus(tandem_chat_template_create(BorrowText(template_text), BorrowText(config_json),
                                               &made->handle_, SinkInto(&made->bos_token_),
                                               SinkInto(&made->eos_token_), SinkInto(&error)),
                   "", error));
  if (made->handle_ == nullptr) {
    return absl::NotFoundError(
        "no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json");
  }
  return made;
}

ChatTemplate::~ChatTemplate() {
  if (handle_ != nullptr) tandem_chat_template_destroy(handle_);
}

absl::StatusOr<std::string> ChatTemplate::Render(std::string_view messages_json,
                                                 const Options& options) const {
  for (const std::string_view json : {messages_json, std::string_view(options.tools_json),
                                      std::string_view(options.variables_json)}) {
    if (json.size() > kMaxMessagesBytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("messages, tools or template variables of %d bytes, at most %d allowed",
                          json.size(), kMaxMessagesBytes));
    }
  }
  const TandemRenderArgs args = {.messages = BorrowText(messages_json),
                                 .tools = BorrowText(options.tools_json),
                                 .variables = BorrowText(options.variables_json),
                                 .add_generation_prompt = options.add_generation_prompt,
                                 .now_s = options.now_s,
                                 .max_output_bytes = kMaxOutputBytes};
  std::string text;
  std::string error;
  TANDEM_RETURN_IF_ERROR(BorderStatus(
      tandem_chat_template_render(handle_, &args, SinkInto(&text), SinkInto(&error)), "", error));
  return text;
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const ChatTemplate& chat_template,
                                                const Tokenizer& tokenizer,
                                                std::string_view messages_json,
                                                const ChatTemplate::Options& options) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, chat_template.Render(messages_json, options));
  return tokenizer.Encode(text, /*add_special_tokens=*/false);
}

}  // namespace tandem
