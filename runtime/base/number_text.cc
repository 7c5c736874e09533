#include "runtime/base/number_text.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace tandem {

std::string NumberText(double value) {
  const bool is_float = std::abs(value) <= std::numeric_limits<float>::max() &&
                        static_cast<double>(static_cast<float>(value)) == value;
  char text[32];  // At most 24 of a double.
  const auto end = is_float ? std::to_chars(text, text + sizeof(text), static_cast<float>(value))
                            : std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

}  // namespace tandem
