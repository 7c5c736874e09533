// The input is three texts with a zero byte between: chat_template.jinja, tokenizer_config.json,
// messages.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/base/check.h"
#include "runtime/base/utf8.h"
#include "runtime/text/chat_template.h"

namespace {

std::string_view TakePart(std::string_view* rest) {
  const size_t end = rest->find('\0');
  const std::string_view part = rest->substr(0, end);
  rest->remove_prefix(end == std::string_view::npos ? rest->size() : end + 1);
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view text = TakePart(&rest);
  const std::string_view config = TakePart(&rest);
  const auto made = tandem::ChatTemplate::Parse(text, {.config = std::string(config)}, {});
  if (!made.ok()) {
    TANDEM_CHECK(absl::IsInvalidArgument(made.status()) || absl::IsNotFound(made.status()))
        << made.status().ToString();
    return 0;
  }
  const auto rendered = (*made)->Render(rest, {.now_s = 1'700'000'000});
  if (rendered.ok()) {
    TANDEM_CHECK(tandem::IsValidUtf8(*rendered));
  } else {
    TANDEM_CHECK(absl::IsInvalidArgument(rendered.status()) ||
                 absl::IsResourceExhausted(rendered.status()))
        << rendered.status().ToString();
  }
  return 0;
}
