#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/small_file.h"
#include "tests/fuzz/mutation.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 20240301;

TEST(TokenizerFuzzTest, DamagedFilesAreErrorsAndNoMore) {
  SCOPED_TRACE(kSeed);
  std::vector<std::string> inputs;
  for (const char* name : {"sentence_piece", "split_bytes", "word_piece"}) {
    const std::string path = std::string(TANDEM_TEST_DATA) + "/text/" + name + "/tokenizer.json";
    const auto json = ReadSmallFile(path, size_t{1} << 20);
    ASSERT_TRUE(json.ok()) << json.status();
    inputs.push_back(*json);
  }
  RunFuzzer(inputs, /*count=*/2000, kSeed);
}

}  // namespace
}  // namespace tandem
