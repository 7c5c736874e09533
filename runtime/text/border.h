// The C++ side of the Rust crate's C ABI: texts, sinks and codes.

#ifndef TANDEM_RUNTIME_TEXT_BORDER_H_
#define TANDEM_RUNTIME_TEXT_BORDER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/text/rust/tandem_text.h"

namespace tandem {

inline TandemText BorrowText(std::string_view text) {
  return TandemText{.data = text.data(), .size = text.size()};
}

// Appends to `text`.
inline TandemTextSink SinkInto(std::string* text) {
  return TandemTextSink{
      .write = [](void* to, const char* data,
                  size_t size) { static_cast<std::string*>(to)->append(data, size); },
      .to = text};
}

// What of a model folder's files was left out, if anything was.
inline void LogLeftOut(std::string_view where, const std::string& what) {
  if (!what.empty())
    LogWarning("part of the model folder is left out", {{"in", where}, {"what", what}});
}

// What a call returned, as a status; `where` comes before the crate's own message.
inline absl::Status BorderStatus(int32_t code, std::string_view where, const std::string& message) {
  if (code == TANDEM_TEXT_OK) return absl::OkStatus();
  const std::string text = absl::StrCat(std::string(where), where.empty() ? "" : ": ", message);
  switch (code) {
    case TANDEM_TEXT_INVALID_ARGUMENT:
      return absl::InvalidArgumentError(text);
    case TANDEM_TEXT_RESOURCE_EXHAUSTED:
      return absl::ResourceExhaustedError(text);
    case TANDEM_TEXT_OUT_OF_RANGE:
      return absl::OutOfRangeError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TEXT_BORDER_H_
