// Compares checkpoints with their goldens, a line each: for tools/dev/fuzz_model.py.
//
//   check_goldens DEVICE ISA FOLDER...
//
// DEVICE is one of tests/support/test_backend.h's.

#include <cstdio>
#include <string>
#include <utility>

#include "tests/support/test_backend.h"
#include "tests/unit/runtime/model/model_golden.h"

int main(int argc, char** argv) {
  for (int i = 3; i < argc; ++i) {
    auto backend = tandem::CreateTestBackend({.device = argv[1], .isa = argv[2]});
    if (!backend.ok()) {
      std::fprintf(stderr, "%s\n", std::string(backend.status().message()).c_str());
      return 2;
    }
    const auto comparison = tandem::CompareWithGolden(argv[i], *std::move(backend));
    if (comparison.ok()) {
      std::printf("%s compared %.3e %d %d\n", argv[i], static_cast<double>(comparison->worst_logit),
                  comparison->wrong_texts, comparison->num_texts);
    } else {
      std::printf("%s refused %s\n", argv[i], std::string(comparison.status().message()).c_str());
    }
    std::fflush(stdout);
  }
  return 0;
}
