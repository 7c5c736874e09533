#include "tests/fuzz/mutation.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string_view>

#include "runtime/base/check.h"
#include "runtime/base/random.h"

namespace tandem {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kTokens[] = {
    // JSON, and numbers at the borders of their types.
    "{"sv, "}"sv, "[]"sv, "{}"sv, "[["sv, "[[[[["sv, ","sv, ":"sv, "\""sv, "\"\""sv, "\\"sv,
    "null"sv, "true"sv, "0"sv, "-1"sv, "0.5"sv, "1e999"sv, "4294967295"sv, "4294967296"sv,
    "9223372036854775807"sv, "-9223372036854775808"sv, "18446744073709551615"sv,
    "18446744073709551616"sv,
    // Text that is none.
    "\0"sv, "\xFF"sv, "\xC3"sv, "\xE2\x96\x81"sv, "\\ud800"sv, "%s"sv,
    // Templates, tokenizers, regular expressions.
    "{{"sv, "}}"sv, "{%"sv, "%}"sv, "<0x41>"sv, "(?:(a*)*)*b"sv,
    // Model folders.
    "\"../x.safetensors\""sv, "\"x.safetensors\""sv, "\"F32\""sv, "\"BOOL\""sv, "\"dtype\""sv,
    "\"shape\""sv, "\"data_offsets\":[0,8]"sv, "\"rope_type\":\"llama3\","sv,
    "\"eos_token_id\":[1,2],"sv};

// A decimal number at or after `place` becomes another one.
void ChangeNumber(std::string* text, size_t place, Random* random) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t begin = text->find_first_of(kDigits, place);
  if (begin == std::string::npos) return;
  const size_t end = std::min(text->find_first_not_of(kDigits, begin), text->size());
  text->replace(begin, end - begin, std::to_string(random->Next() >> random->Below(64)));
}

void MutateOnce(std::string* text, const std::vector<std::string>& others, Random* random) {
  const size_t place = random->Below(text->size() + 1);
  const size_t length = random->Below(std::min<size_t>(text->size() - place, 64) + 1);
  switch (random->Below(9)) {
    case 0:
      if (place < text->size()) (*text)[place] = static_cast<char>(random->Next());
      return;
    case 1:
      if (place < text->size()) {
        (*text)[place] = static_cast<char>((*text)[place] ^ 1 << random->Below(8));
      }
      return;
    case 2:
      text->erase(place, length);
      return;
    case 3:
      // Most of what follows a cut is lost on parsers, so it is rarer.
      if (random->Chance(0.3)) text->resize(place);
      return;
    case 4:
      text->insert(place, text->substr(place, length));
      return;
    case 5:
      text->insert(random->Below(text->size() + 1), text->substr(place, length));
      return;
    case 6:
      text->replace(place, random->Chance(0.5) ? std::min<size_t>(length, 8) : 0,
                    kTokens[random->Below(std::size(kTokens))]);
      return;
    case 7:
      ChangeNumber(text, place, random);
      return;
    default: {
      const std::string& other = others[random->Below(others.size())];
      const size_t begin = random->Below(other.size());
      text->insert(place, other.substr(begin, random->Below(256)));
    }
  }
}

void WriteCorpus(const std::vector<std::string>& inputs, const std::string& folder) {
  for (const std::string& input : inputs) {
    const std::string path = folder + "/" + std::to_string(std::hash<std::string>()(input));
    std::ofstream file(path, std::ios::binary);
    file << input;
    TANDEM_CHECK(file.good()) << path;
  }
}

}  // namespace

void RunFuzzer(const std::vector<std::string>& inputs, int count, uint64_t seed) {
  if (const char* folder = std::getenv("TANDEM_FUZZ_CORPUS")) WriteCorpus(inputs, folder);
  const auto run = [](const std::string& input) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  };
  for (const std::string& input : inputs) run(input);
  Random random(seed);
  for (int i = 0; i < count; ++i) {
    std::string input = inputs[random.Below(inputs.size())];
    for (uint64_t changes = 1 + random.Below(4); changes > 0; --changes) {
      MutateOnce(&input, inputs, &random);
    }
    run(input);
  }
}

}  // namespace tandem
