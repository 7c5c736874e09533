#include "runtime/text/stream_detokenizer.h"

#include <algorithm>
#include <utility>

#include "runtime/base/utf8.h"

namespace tandem {
namespace {

using DecoderKind = Tokenizer::DecoderKind;

// How many returned ids stay in the window of kOther, so that what a decoder does between
// neighbours (spaces, punctuation) comes out as in the whole text.
constexpr size_t kContextIds = 6;

bool EndsWithReplacement(std::string_view text) {
  return text.size() >= kReplacementCharacter.size() &&
         text.substr(text.size() - kReplacementCharacter.size()) == kReplacementCharacter;
}

}  // namespace

StreamDetokenizer::StreamDetokenizer(const Tokenizer* tokenizer, std::span<const int32_t> prompt,
                                     bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {
  const auto is_text = [&](int32_t id) {
    return tokenizer->HasToken(id) && !(skip_special_tokens && tokenizer->IsSpecial(id));
  };
  const bool begins_text = std::none_of(prompt.begin(), prompt.end(), is_text);
  if (begins_text) spaces_to_strip_ = tokenizer->num_stripped_spaces();
  if (tokenizer->decoder_kind() == DecoderKind::kOther) {
    const size_t num_context = std::min(prompt.size(), kContextIds);
    window_.assign(prompt.end() - num_context, prompt.end());
    num_context_ = num_context;
  }
}

std::string StreamDetokenizer::Append(int32_t id) {
  if (!tokenizer_->HasToken(id)) return {};
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return {};
  switch (tokenizer_->decoder_kind()) {
    case DecoderKind::kBytes:
      return AppendBytes(tokenizer_->TokenBytes(id));
    case DecoderKind::kSentencePiece:
      return AppendPiece(id);
    case DecoderKind::kOther:
      return AppendWindow(id);
  }
  return {};
}

std::string StreamDetokenizer::Finish() {
  switch (tokenizer_->decoder_kind()) {
    case DecoderKind::kBytes:
      return ToValidUtf8(std::exchange(pending_, {}));
    case DecoderKind::kSentencePiece:
      return StripSpaces(TakeByteRun());
    case DecoderKind::kOther:
      return TakeWindow();
  }
  return {};
}

std::string StreamDetokenizer::AppendBytes(std::string_view bytes) {
  pending_.append(bytes);
  const size_t num_complete = pending_.size() - UnfinishedSuffix(pending_);
  std::string text = ToValidUtf8(std::string_view(pending_).substr(0, num_complete));
  pending_.erase(0, num_complete);
  return text;
}

std::string StreamDetokenizer::AppendPiece(int32_t id) {
  const std::string_view bytes = tokenizer_->TokenBytes(id);
  if (tokenizer_->IsByteFallback(id)) {
    pending_.append(bytes);
    return {};
  }
  std::string text = TakeByteRun();
  text.append(bytes);
  return StripSpaces(std::move(text));
}

std::string StreamDetokenizer::TakeByteRun() {
  std::string run = std::exchange(pending_, {});
  if (IsValidUtf8(run)) return run;
  std::string text;
  for (size_t i = 0; i < run.size(); ++i) text.append(kReplacementCharacter);
  return text;
}

std::string StreamDetokenizer::StripSpaces(std::string text) {
  size_t num_stripped = 0;
  while (spaces_to_strip_ > 0 && num_stripped < text.size()) {
    if (text[num_stripped] != ' ') {
      spaces_to_strip_ = 0;
      break;
    }
    ++num_stripped;
    --spaces_to_strip_;
  }
  text.erase(0, num_stripped);
  return text;
}

std::string StreamDetokenizer::AppendWindow(int32_t id) {
  window_.push_back(id);
  const std::string text = DecodeWindow(window_.size());
  if (EndsWithReplacement(text)) return {};
  const std::string before = DecodeWindow(num_context_);
  if (text.size() <= before.size()) return {};
  const size_t num_dropped = window_.size() - std::min(window_.size(), kContextIds);
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(num_dropped));
  num_context_ = window_.size();
  return text.substr(before.size());
}

std::string StreamDetokenizer::TakeWindow() {
  const std::string text = DecodeWindow(window_.size());
  const std::string before = DecodeWindow(num_context_);
  num_context_ = window_.size();
  return text.size() <= before.size() ? std::string() : text.substr(before.size());
}

std::string StreamDetokenizer::DecodeWindow(size_t num_ids) const {
  return tokenizer_->Decode(std::span(window_).first(num_ids), skip_special_tokens_).value_or("");
}

}  // namespace tandem
