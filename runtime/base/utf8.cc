#include "runtime/base/utf8.h"

#include <cstdint>

namespace tandem {
namespace {

// What starts at the front of some bytes.
struct Part {
  size_t size;      // Bytes of a character, or of the longest beginning of one; at least 1.
  bool complete;    // A whole character.
  bool unfinished;  // The bytes ended before the character did.
};

uint8_t ByteAt(std::string_view bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

// `bytes` is not empty.
Part FirstPart(std::string_view bytes) {
  const uint8_t lead = ByteAt(bytes, 0);
  if (lead < 0x80) return {.size = 1, .complete = true, .unfinished = false};
  size_t length = 0;
  // Bounds of the second byte: they exclude long forms, surrogates and what is past U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {.size = 1, .complete = false, .unfinished = false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {.size = i, .complete = false, .unfinished = true};
    const uint8_t byte = ByteAt(bytes, i);
    if (byte < low || byte > high) return {.size = i, .complete = false, .unfinished = false};
    low = 0x80;
    high = 0xBF;
  }
  return {.size = length, .complete = true, .unfinished = false};
}

}  // namespace

size_t UnfinishedSuffix(std::string_view bytes) {
  for (size_t size = 1; size <= 3 && size <= bytes.size(); ++size) {
    const std::string_view suffix = bytes.substr(bytes.size() - size);
    // Only a suffix that starts with a lead byte can be unfinished.
    if (ByteAt(suffix, 0) < 0xC0) continue;
    const Part part = FirstPart(suffix);
    return part.unfinished ? size : 0;
  }
  return 0;
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Part part = FirstPart(bytes);
    text.append(part.complete ? bytes.substr(0, part.size) : kReplacementCharacter);
    bytes.remove_prefix(part.size);
  }
  return text;
}

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Part part = FirstPart(bytes);
    if (!part.complete) return false;
    bytes.remove_prefix(part.size);
  }
  return true;
}

}  // namespace tandem
