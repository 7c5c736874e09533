#include "tests/fuzz/mutation.h"

#include <algorithm>
#include <iterator>

namespace tandem {
namespace {

constexpr const char* kTokens[] = {"0",
                                   "-1",
                                   "1e999",
                                   "4294967295",
                                   "18446744073709551616",
                                   "null",
                                   "true",
                                   "\"\"",
                                   "[]",
                                   "{}",
                                   "[[",
                                   "{{",
                                   "}}",
                                   "{%",
                                   "%}",
                                   "\\",
                                   "\"",
                                   "\\ud800",
                                   "\xFF",
                                   "\xC3",
                                   "\xE2\x96\x81",
                                   "<0x41>",
                                   ",",
                                   ":",
                                   "%s",
                                   "(?:(a*)*)*b"};

size_t Below(std::mt19937_64& random, size_t bound) { return bound == 0 ? 0 : random() % bound; }

void MutateOnce(std::string* text, const std::vector<std::string>& others,
                std::mt19937_64& random) {
  const size_t place = Below(random, text->size() + 1);
  const size_t length = Below(random, std::min<size_t>(text->size() - place, 64) + 1);
  switch (random() % 7) {
    case 0:
      if (place < text->size()) (*text)[place] = static_cast<char>(random());
      break;
    case 1:
      text->erase(place, length);
      break;
    case 2:
      text->resize(place);
      break;
    case 3:
      text->insert(place, text->substr(place, length));
      break;
    case 4:
      text->insert(Below(random, text->size() + 1), text->substr(place, length));
      break;
    case 5:
      text->replace(place, std::min<size_t>(length, 8), kTokens[random() % std::size(kTokens)]);
      break;
    default: {
      const std::string& other = others[random() % others.size()];
      const size_t begin = Below(random, other.size());
      text->insert(place, other.substr(begin, Below(random, 256)));
    }
  }
}

}  // namespace

std::string Mutate(std::string input, const std::vector<std::string>& others,
                   std::mt19937_64& random) {
  const int num_changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < num_changes; ++i) MutateOnce(&input, others, random);
  return input;
}

void RunFuzzer(const std::vector<std::string>& inputs, int count, uint64_t seed) {
  const auto run = [](const std::string& input) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  };
  for (const std::string& input : inputs) run(input);
  std::mt19937_64 random(seed);
  for (int i = 0; i < count; ++i) run(Mutate(inputs[random() % inputs.size()], inputs, random));
}

}  // namespace tandem
