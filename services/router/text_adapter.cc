#include "services/router/text_adapter.h"

#include <memory>
#include <string>
#include <utility>

#include "runtime/text/stream_detokenizer.h"

namespace tandem {
namespace {

class TextAdapter final : public Detokenizer {
 public:
  TextAdapter(const Tokenizer* tokenizer, const std::vector<int32_t>& prompt,
              bool skip_special_tokens)
      : stream_(tokenizer, prompt, skip_special_tokens) {}

  std::string Append(int32_t token) override { return stream_.Append(token); }
  std::string Finish() override { return stream_.Finish(); }

 private:
  StreamDetokenizer stream_;
};

}  // namespace

DetokenizerFactory MakeDetokenizerFactory(const Tokenizer* tokenizer, std::vector<int32_t> prompt,
                                          bool skip_special_tokens) {
  if (tokenizer == nullptr) return nullptr;
  return [tokenizer, prompt = std::move(prompt), skip_special_tokens] {
    return std::make_unique<TextAdapter>(tokenizer, prompt, skip_special_tokens);
  };
}

}  // namespace tandem
