// A checkpoint's tokenizer: Hugging Face `tokenizers` (Rust) reading its tokenizer.json.

#ifndef TANDEM_RUNTIME_TEXT_TOKENIZER_H_
#define TANDEM_RUNTIME_TEXT_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct TandemTokenizer;  // The Rust crate's: rust/tandem_text.h.

namespace tandem {

// Contents of tokenizer_config.json and special_tokens_map.json; an empty one is a missing file.
struct TokenizerConfigText {
  static constexpr size_t kMaxFileBytes = size_t{16} << 20;

  std::string config;
  std::string special_tokens_map;

  static absl::StatusOr<TokenizerConfigText> Read(const std::string& folder);
};

// Immutable once made: every method may be called from any thread at once.
class Tokenizer {
 public:
  static constexpr size_t kMaxFileBytes = size_t{128} << 20;
  static constexpr size_t kMaxTextBytes = size_t{64} << 20;
  // A text is encoded in pieces of a little more than this, where that certainly gives the same
  // tokens.
  static constexpr size_t kPieceBytes = size_t{4} << 10;
  // Memory that encoding takes for each byte of the largest piece (117 to 370 were measured).
  static constexpr int64_t kEncodingFactor = 384;

  // How ids become bytes.
  enum class DecoderKind {
    kBytes,          // Byte-level BPE: a token is a fixed run of bytes.
    kSentencePiece,  // Pieces with U+2581 for a space; tokens <0x00> to <0xFF> are bytes.
    kOther,          // Only the library knows.
  };

  // Reads folder/tokenizer.json and the added and special tokens that folder/tokenizer_config.json
  // and special_tokens_map.json name beside it, as Transformers does. NotFound without
  // tokenizer.json, InvalidArgument if a file is too large or broken.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const std::string& folder);
  // The same from the files' contents; `name` is for messages, an empty content is a missing file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(std::string_view json,
                                                          const TokenizerConfigText& config,
                                                          const std::string& name,
                                                          size_t piece_bytes = kPieceBytes);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // With add_special_tokens the file's post-processor runs: Llama's puts the begin token first.
  // Text of special tokens ("<|end|>") becomes those tokens either way, as in Transformers.
  // InvalidArgument if `text` is not UTF-8 or longer than kMaxTextBytes; OutOfRange, with the
  // numbers, once its first pieces have more than max_tokens. It may have more all the same.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens,
                                              size_t max_tokens = SIZE_MAX) const;
  // The length of what Encode takes at once: all of `text`, or the largest piece of it. OutOfRange,
  // with the numbers, if its length alone says that it has more than max_tokens.
  absl::StatusOr<size_t> LargestPieceBytes(std::string_view text,
                                           size_t max_tokens = SIZE_MAX) const;

  // Always valid UTF-8: bytes that form no character become U+FFFD. Ids outside the vocabulary
  // give nothing, as in Transformers.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                     bool skip_special_tokens = true) const;

  // One more than the highest id, added tokens included. The model's vocabulary may be larger.
  int vocab_size() const { return static_cast<int>(token_bytes_.size()); }

  // Whether the id names a token: vocabularies may have holes.
  bool HasToken(int32_t id) const;

  // The bytes a token adds within a text; may be part of a character. Special tokens give their
  // name. Empty for ids that name none.
  std::string_view TokenBytes(int32_t id) const;

  // TokenBytes as UTF-8, with U+FFFD where bytes form no character: `token` of OpenAI's logprobs.
  std::string TokenText(int32_t id) const;

  // Whether Decode leaves it out by default.
  bool IsSpecial(int32_t id) const;

  DecoderKind decoder_kind() const { return decoder_kind_; }
  // For kSentencePiece: whether the token is one of <0x00> to <0xFF>.
  bool IsByteFallback(int32_t id) const;
  // For kSentencePiece: how many leading spaces of a whole text the decoder drops.
  int num_stripped_spaces() const { return num_stripped_spaces_; }

 private:
  Tokenizer() = default;

  TandemTokenizer* handle_ = nullptr;  // Owned.
  DecoderKind decoder_kind_ = DecoderKind::kOther;
  int num_stripped_spaces_ = 0;
  std::vector<std::string> token_bytes_;
  std::vector<uint8_t> token_flags_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TEXT_TOKENIZER_H_
