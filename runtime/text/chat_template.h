// A checkpoint's chat template: Jinja as Transformers runs it, by minijinja (Rust).

#ifndef TANDEM_RUNTIME_TEXT_CHAT_TEMPLATE_H_
#define TANDEM_RUNTIME_TEXT_CHAT_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/tokenizer.h"

struct TandemChatTemplate;  // The Rust crate's: rust/tandem_text.h.

namespace tandem {

// Immutable once made: every method may be called from any thread at once.
class ChatTemplate {
 public:
  static constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
  static constexpr size_t kMaxMessagesBytes = size_t{64} << 20;
  static constexpr size_t kMaxOutputBytes = size_t{64} << 20;

  struct Options {
    bool add_generation_prompt = true;
    std::string tools_json;      // A JSON list; empty for none.
    std::string variables_json;  // A JSON object of further variables; empty for none.
    int64_t now_s = 0;           // Seconds since 1970 UTC, for strftime_now.
  };

  // Begin and end token as the model's configuration has them; empty for none.
  struct ModelTokens {
    std::string bos;
    std::string eos;
  };

  // Reads the template from folder/chat_template.jinja or else from folder/tokenizer_config.json
  // (`chat_template`: a string, or a list of {name, template}, of which "default" is taken, or
  // "tool_use" when tools are given), and special tokens such as bos_token from the latter, then
  // from special_tokens_map.json (strings or objects with `content`), then from `tokens`.
  // NotFound if the folder has no template; InvalidArgument if a file is broken or too large.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(const std::string& folder,
                                                              const ModelTokens& tokens);
  // The same from the files' contents; an empty one is a missing file.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string_view template_text,
                                                             const TokenizerConfigText& config,
                                                             const ModelTokens& tokens);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // `messages_json` is a JSON list of objects with `role` and `content`.
  // InvalidArgument with the template's own message if it calls raise_exception, or if it fails
  // on these messages; ResourceExhausted if it takes too many steps or writes too much.
  absl::StatusOr<std::string> Render(std::string_view messages_json, const Options& options) const;

 private:
  ChatTemplate() = default;

  TandemChatTemplate* handle_ = nullptr;  // Owned.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TEXT_CHAT_TEMPLATE_H_
