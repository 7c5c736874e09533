// UTF-8 with the replacement rules of the Unicode standard (chapter 3, "U+FFFD substitution of
// maximal subparts"), which Python and Rust follow too.

#ifndef TANDEM_RUNTIME_BASE_UTF8_H_
#define TANDEM_RUNTIME_BASE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// How many bytes at the end of `bytes` begin a character that more bytes could complete: 0 to 3.
size_t UnfinishedSuffix(std::string_view bytes);

// `bytes` with U+FFFD for every maximal part that forms no character.
std::string ToValidUtf8(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_UTF8_H_
