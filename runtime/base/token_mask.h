// Which tokens may be drawn: a bit for each id of a vocabulary, as libraries for grammars give it.

#ifndef TANDEM_RUNTIME_BASE_TOKEN_MASK_H_
#define TANDEM_RUNTIME_BASE_TOKEN_MASK_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

// Borrows its words.
struct TokenMask {
  // Bit id % 32 of words[id / 32] is set: `id` may be drawn. Ids behind the last word may not.
  // Without a word it is no mask, and all may be.
  std::span<const uint32_t> words;

  bool empty() const { return words.empty(); }
  bool Allows(int32_t id) const {
    if (empty()) return true;
    const auto bit = static_cast<uint32_t>(id);  // A negative id is a large one.
    return bit / 32 < words.size() && (words[bit / 32] >> bit % 32 & 1) != 0;
  }
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_TOKEN_MASK_H_
