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

struct TandemChatTemplate;  // Of the Rust crate: rust/tandem_text.h.

namespace tandem {

// Immutable once made: every method may be called from any thread at once.
class ChatTemplate {
 public:
  static constexpr size_t kMaxFileBytes = size_t{16} << 20;
  static constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
  static constexpr size_t kMaxMessagesBytes = size_t{64} << 20;
  static constexpr size_t kMaxOutputBytes = size_t{64} << 20;

  struct Options {
    bool add_generation_prompt = true;
    std::string tools_json;      // A JSON list; empty for none.
    std::string variables_json;  // A JSON object of further variables; empty for none.
    int64_t now_s = 0;           // Seconds since 1970 UTC, for strftime_now.
  };

  // Reads the template from folder/chat_template.jinja or else from folder/tokenizer_config.json
  // (`chat_template`: a string, or a list of {name, template}, of which "default" is taken, or
  // "tool_use" when tools are given), and special tokens such as bos_token from the latter
  // (strings or objects with `content`).
  // NotFound if the folder has no template; InvalidArgument if a file is broken or too large.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(const std::string& folder);
  // The same from the files' contents; an empty one is a missing file.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string_view template_text,
                                                             std::string_view config_json);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // `messages_json` is a JSON list of objects with `role` and `content`.
  // InvalidArgument with the template's own message if it calls raise_exception, or if it fails
  // on these messages; ResourceExhausted if it takes too many steps or writes too much.
  absl::StatusOr<std::string> Render(std::string_view messages_json, const Options& options) const;

  // As the configuration names them; empty if it does not.
  const std::string& bos_token() const { return bos_token_; }
  const std::string& eos_token() const { return eos_token_; }

 private:
  ChatTemplate() = default;

  TandemChatTemplate* handle_ = nullptr;  // Owned.
  std::string bos_token_;
  std::string eos_token_;
};

// A conversation as prompt ids. Templates write the begin token themselves, so the text is encoded
// without special tokens added, as Transformers does: never two begin tokens.
absl::StatusOr<std::vector<int32_t>> EncodeChat(const ChatTemplate& chat_template,
                                                const Tokenizer& tokenizer,
                                                std::string_view messages_json,
                                                const ChatTemplate::Options& options);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TEXT_CHAT_TEMPLATE_H_
