// What tools/dev/make_text_goldens.py wrote to tests/data/text.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_TEXT_GOLDEN_H_
#define TANDEM_TESTS_UNIT_RUNTIME_TEXT_GOLDEN_H_

#include <boost/json.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace tandem {

struct GoldenText {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<int32_t> ids_with_special;
};

struct GoldenDecoding {
  std::vector<int32_t> ids;
  std::string decoded;
  std::string decoded_with_special;
};

struct Golden {
  int vocab_size = 0;
  std::vector<GoldenText> texts;
  std::vector<GoldenDecoding> decodings;  // From the texts' ids and from ids drawn at random.
};

inline constexpr const char* kTokenizerNames[] = {"demo_model", "sentence_piece", "split_bytes",
                                                  "word_piece"};

std::string TokenizerFolder(const std::string& name);
// Stops the test if the file does not load.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& name);
Golden LoadGolden(const std::string& name);
// A file of tests/data/text.
boost::json::value LoadJson(const std::string& file);

// The token that adds these bytes within a text; the first of several.
int32_t IdOf(const Tokenizer& tokenizer, std::string_view bytes);

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_TEXT_GOLDEN_H_
