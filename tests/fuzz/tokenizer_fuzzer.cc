// The input is a tokenizer.json.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/check.h"
#include "runtime/base/utf8.h"
#include "runtime/text/stream_detokenizer.h"
#include "runtime/text/tokenizer.h"

namespace tandem {
namespace {

void CheckStream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDetokenizer detokenizer(&tokenizer, {});
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.Append(id);
    TANDEM_CHECK(IsValidUtf8(part));
    text += part;
  }
  text += detokenizer.Finish();
  if (tokenizer.decoder_kind() == Tokenizer::DecoderKind::kOther) return;
  const absl::StatusOr<std::string> whole = tokenizer.Decode(ids);
  if (whole.ok()) TANDEM_CHECK(*whole == text) << "a stream of " << ids.size() << " ids differs";
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::Tokenizer;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::Parse(json, {}, "fuzz");
  if (!tokenizer.ok()) {
    TANDEM_CHECK(absl::IsInvalidArgument(tokenizer.status())) << tokenizer.status().ToString();
    return 0;
  }
  std::vector<int32_t> ids;
  for (int32_t id = -1; id <= (*tokenizer)->vocab_size() && id < 2000; ++id) ids.push_back(id);
  tandem::CheckStream(**tokenizer, ids);
  constexpr std::string_view kText = "Hello you, \xE4\xB8\x96\xE7\x95\x8C! 123\n<s>x";
  const auto cutting = Tokenizer::Parse(json, {}, "fuzz", /*piece_bytes=*/0);
  TANDEM_CHECK(cutting.ok());
  const bool cuts = (*cutting)->LargestPieceBytes(kText).value() < kText.size();
  for (const bool add_special_tokens : {false, true}) {
    const auto encoded = (*tokenizer)->Encode(kText, add_special_tokens);
    if (encoded.ok()) tandem::CheckStream(**tokenizer, *encoded);
    if (!cuts) continue;
    const auto pieces = (*cutting)->Encode(kText, add_special_tokens);
    TANDEM_CHECK(encoded.ok() == pieces.ok());
    if (encoded.ok()) TANDEM_CHECK(*encoded == *pieces) << "pieces have other tokens";
  }
  return 0;
}
