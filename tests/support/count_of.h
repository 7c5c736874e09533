#ifndef TANDEM_TESTS_SUPPORT_COUNT_OF_H_
#define TANDEM_TESTS_SUPPORT_COUNT_OF_H_

#include <cstddef>
#include <string_view>

namespace tandem {

// How often `part` is in `text`.
inline int CountOf(std::string_view part, std::string_view text) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_COUNT_OF_H_
