#include "runtime/text/chat_template.h"

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/text/border.h"

namespace tandem {
absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(const std::string& folder,
                                                                   const ModelTokens& tokens) {
  absl::StatusOr<std::string> text =
      ReadSmallFile(folder + "/chat_template.jinja", kMaxTemplateBytes);
  if (absl::IsNotFound(text.status())) text = std::string();
  TANDEM_RETURN_IF_ERROR(text.status());
  TANDEM_ASSIGN_OR_RETURN(const TokenizerConfigText config, TokenizerConfigText::Read(folder));
  absl::StatusOr<std::unique_ptr<ChatTemplate>> made = Parse(*text, config, tokens);
  if (made.ok()) return made;
  return absl::Status(made.status().code(),
                      absl::StrFormat("%s: %s", folder, std::string(made.status().message())));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view template_text,
                                                                  const TokenizerConfigText& config,
                                                                  const ModelTokens& tokens) {
  std::unique_ptr<ChatTemplate> made(new ChatTemplate());
  std::string error, warning;
  TANDEM_RETURN_IF_ERROR(BorderStatus(
      tandem_chat_template_create(BorrowText(template_text), BorrowText(config.config),
                                  BorrowText(config.special_tokens_map), BorrowText(tokens.bos),
                                  BorrowText(tokens.eos), &made->handle_, SinkInto(&warning),
                                  SinkInto(&error)),
      "", error));
  LogLeftOut("chat template", warning);
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

}  // namespace tandem
