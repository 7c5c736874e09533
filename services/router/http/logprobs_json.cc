#include "services/router/http/logprobs_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"

namespace tandem {
namespace {

constexpr float kLowestLogprob = -9999.0f;

int64_t NumCharacters(const std::string& utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

void AppendComma(std::string* out) {
  if (!out->empty()) *out += ',';
}

void AppendChatEntry(int32_t id, float logprob, const TokenNames& names, std::string* out) {
  *out += "{\"token\":";
  AppendJsonString(names.Text(id), out);
  *out += ",\"logprob\":";
  AppendLogprob(logprob, out);
  *out += ",\"bytes\":" + names.BytesJson(id);
}

void AppendPromptEntry(int32_t id, float logprob, int32_t rank, const TokenNames& names,
                       std::string* out) {
  absl::StrAppend(out, "\"", id, "\":{\"logprob\":");
  AppendLogprob(logprob, out);
  absl::StrAppend(out, ",\"rank\":", rank, ",\"decoded_token\":");
  AppendJsonString(names.Text(id), out);
  *out += '}';
}

}  // namespace

void AppendLogprob(float logprob, std::string* out) {
  if (!(logprob >= kLowestLogprob)) logprob = kLowestLogprob;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), logprob);
  out->append(text, end.ptr);
}

void AppendIds(std::span<const int32_t> ids, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < ids.size(); ++i) absl::StrAppend(out, i > 0 ? "," : "", ids[i]);
  *out += ']';
}

std::string TokenNames::Text(int32_t id) const {
  return tokenizer_ == nullptr ? absl::StrCat("token_id:", id) : tokenizer_->TokenText(id);
}

std::string TokenNames::BytesJson(int32_t id) const {
  if (tokenizer_ == nullptr) return "null";
  std::string out = "[";
  for (const char byte : tokenizer_->TokenBytes(id)) {
    absl::StrAppend(&out, out.size() > 1 ? "," : "", static_cast<int>(static_cast<uint8_t>(byte)));
  }
  return out + "]";
}

void LogprobsJson::Add(const SampledToken& token, int num_top, bool chat, const TokenNames& names) {
  if (chat) {
    AddChat(token, num_top, names);
  } else {
    AddCompletion(token, num_top, names);
  }
}

void LogprobsJson::AddChat(const SampledToken& token, int num_top, const TokenNames& names) {
  AppendComma(&content_);
  AppendChatEntry(token.token, token.logprob, names, &content_);
  content_ += ",\"top_logprobs\":[";
  const size_t count = std::min<size_t>(token.top.size(), std::max(num_top, 0));
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) content_ += ',';
    AppendChatEntry(token.top[i].token, token.top[i].logprob, names, &content_);
    content_ += '}';
  }
  content_ += "]}";
}

int64_t LogprobsJson::num_bytes() const {
  return std::ssize(content_) + std::ssize(tokens_) + std::ssize(token_logprobs_) +
         std::ssize(top_logprobs_) + std::ssize(text_offset_);
}

void LogprobsJson::AddCompletion(const SampledToken& token, int num_top, const TokenNames& names) {
  const std::string text = names.Text(token.token);
  for (std::string* list : {&tokens_, &token_logprobs_, &top_logprobs_, &text_offset_}) {
    AppendComma(list);
  }
  AppendJsonString(text, &tokens_);
  AppendLogprob(token.logprob, &token_logprobs_);
  absl::StrAppend(&text_offset_, offset_);
  offset_ += NumCharacters(text);
  if (num_top <= 0) {
    top_logprobs_ += "null";
    return;
  }
  // Names of tokens that are parts of characters may be equal: the likelier one keeps it.
  std::set<std::string> named;
  top_logprobs_ += '{';
  const auto add = [&](int32_t id, float logprob) {
    const std::string name = names.Text(id);
    if (!named.insert(name).second) return;
    if (named.size() > 1) top_logprobs_ += ',';
    AppendJsonString(name, &top_logprobs_);
    top_logprobs_ += ':';
    AppendLogprob(logprob, &top_logprobs_);
  };
  const size_t count = std::min<size_t>(token.top.size(), num_top);
  for (size_t i = 0; i < count; ++i) add(token.top[i].token, token.top[i].logprob);
  add(token.token, token.logprob);
  top_logprobs_ += '}';
}

std::string LogprobsJson::Json(bool chat) const {
  if (chat) return "{\"content\":[" + content_ + "]}";
  return "{\"tokens\":[" + tokens_ + "],\"token_logprobs\":[" + token_logprobs_ +
         "],\"top_logprobs\":[" + top_logprobs_ + "],\"text_offset\":[" + text_offset_ + "]}";
}

void LogprobsJson::Clear() {
  for (std::string* list : {&content_, &tokens_, &token_logprobs_, &top_logprobs_, &text_offset_}) {
    list->clear();
  }
}

std::string PromptLogprobsJson(std::span<const SampledToken> logprobs, const TokenNames& names) {
  std::string out = "[null";
  for (const SampledToken& token : logprobs) {
    out += ",{";
    AppendPromptEntry(token.token, token.logprob, token.rank, names, &out);
    for (size_t i = 0; i < token.top.size(); ++i) {
      if (token.top[i].token == token.token) continue;
      out += ',';
      AppendPromptEntry(token.top[i].token, token.top[i].logprob, static_cast<int32_t>(i) + 1,
                        names, &out);
    }
    out += '}';
  }
  return out + "]";
}

}  // namespace tandem
