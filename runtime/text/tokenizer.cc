#include "runtime/text/tokenizer.h"

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/text/border.h"

namespace tandem {
namespace {

// Ids index tables: the largest vocabularies in use have about 2^18.
constexpr uint32_t kMaxIds = uint32_t{1} << 24;

// Beside the crate's flags: the id names a token.
constexpr uint8_t kPresent = 0x80;

// Empty if there is no such file.
absl::StatusOr<std::string> ReadOptionalFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, TokenizerConfigText::kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

// The library panics on some files that it cannot read, or whose tokens it cannot decode.
absl::Status FileStatus(int32_t code, const std::string& name, const std::string& error) {
  if (code != TANDEM_TEXT_INTERNAL) return BorderStatus(code, name, error);
  return BorderStatus(TANDEM_TEXT_INVALID_ARGUMENT, name, "not a tokenizer.json: " + error);
}

}  // namespace

absl::StatusOr<TokenizerConfigText> TokenizerConfigText::Read(const std::string& folder) {
  TokenizerConfigText text;
  TANDEM_ASSIGN_OR_RETURN(text.config, ReadOptionalFile(folder + "/tokenizer_config.json"));
  TANDEM_ASSIGN_OR_RETURN(text.special_tokens_map,
                          ReadOptionalFile(folder + "/special_tokens_map.json"));
  return text;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string json, ReadSmallFile(path, kMaxFileBytes));
  TANDEM_ASSIGN_OR_RETURN(const TokenizerConfigText config, TokenizerConfigText::Read(folder));
  return Parse(json, config, path);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view json,
                                                            const TokenizerConfigText& config,
                                                            const std::string& name,
                                                            size_t piece_bytes) {
  if (json.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, at most %d allowed", name, json.size(), kMaxFileBytes));
  }
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  std::string error, warning;
  TandemTokenizerInfo info = {};
  const int32_t code = tandem_tokenizer_create(
      BorrowText(json), BorrowText(config.config), BorrowText(config.special_tokens_map), kMaxIds,
      piece_bytes, &tokenizer->handle_, &info, SinkInto(&warning), SinkInto(&error));
  TANDEM_RETURN_IF_ERROR(FileStatus(code, name, error));
  LogLeftOut(name, warning);
  switch (info.decoder_kind) {
    case TANDEM_DECODER_BYTES:
      tokenizer->decoder_kind_ = DecoderKind::kBytes;
      break;
    case TANDEM_DECODER_SENTENCE_PIECE:
      tokenizer->decoder_kind_ = DecoderKind::kSentencePiece;
      break;
    default:
      tokenizer->decoder_kind_ = DecoderKind::kOther;
  }
  tokenizer->num_stripped_spaces_ = static_cast<int>(info.num_stripped_spaces);
  tokenizer->token_bytes_.resize(info.vocab_size);
  tokenizer->token_flags_.resize(info.vocab_size);
  const TandemTokenSink fill = {
      .write =
          [](void* to, uint32_t id, const char* bytes, size_t size, uint32_t flags) {
            auto* filled = static_cast<Tokenizer*>(to);
            filled->token_bytes_[id].assign(bytes, size);
            filled->token_flags_[id] = static_cast<uint8_t>(flags) | kPresent;
          },
      .to = tokenizer.get()};
  const int32_t filled = tandem_tokenizer_tokens(tokenizer->handle_, fill, SinkInto(&error));
  TANDEM_RETURN_IF_ERROR(FileStatus(filled, name, error));
  return tokenizer;
}

Tokenizer::~Tokenizer() {
  if (handle_ != nullptr) tandem_tokenizer_destroy(handle_);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       bool add_special_tokens,
                                                       size_t max_tokens) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("text of %d bytes, at most %d allowed", text.size(), kMaxTextBytes));
  }
  std::vector<int32_t> ids;
  const TandemIdSink sink = {.write =
                                 [](void* to, const uint32_t* values, size_t size) {
                                   static_cast<std::vector<int32_t>*>(to)->assign(values,
                                                                                  values + size);
                                 },
                             .to = &ids};
  std::string error;
  TANDEM_RETURN_IF_ERROR(
      BorderStatus(tandem_tokenizer_encode(handle_, BorrowText(text), add_special_tokens,
                                           max_tokens, sink, SinkInto(&error)),
                   "tokenizer", error));
  return ids;
}

absl::StatusOr<size_t> Tokenizer::LargestPieceBytes(std::string_view text,
                                                    size_t max_tokens) const {
  size_t bytes = 0;
  std::string error;
  TANDEM_RETURN_IF_ERROR(
      BorderStatus(tandem_tokenizer_largest_piece(handle_, BorrowText(text), max_tokens, &bytes,
                                                  SinkInto(&error)),
                   "tokenizer", error));
  return bytes;
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                              bool skip_special_tokens) const {
  // Negative ids become large ones, which no vocabulary has.
  const std::vector<uint32_t> values(ids.begin(), ids.end());
  std::string text;
  std::string error;
  TANDEM_RETURN_IF_ERROR(
      BorderStatus(tandem_tokenizer_decode(handle_, values.data(), values.size(),
                                           skip_special_tokens, SinkInto(&text), SinkInto(&error)),
                   "tokenizer", error));
  return text;
}

bool Tokenizer::HasToken(int32_t id) const {
  return id >= 0 && id < vocab_size() && (token_flags_[id] & kPresent) != 0;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return token_bytes_[id];
}

std::string Tokenizer::TokenText(int32_t id) const { return ToValidUtf8(TokenBytes(id)); }

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && (token_flags_[id] & TANDEM_TOKEN_SPECIAL) != 0;
}

bool Tokenizer::IsByteFallback(int32_t id) const {
  return id >= 0 && id < vocab_size() && (token_flags_[id] & TANDEM_TOKEN_BYTE) != 0;
}

}  // namespace tandem
