// Compares checkpoints with their goldens, a line each: for tools/dev/fuzz_model.py.
//
//   check_goldens ISA FOLDER...

#include <cstdio>
#include <string>

#include "tests/unit/runtime/model/model_golden.h"

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const auto comparison = tandem::CompareWithGolden(argv[i], {.isa = argv[1], .num_threads = 1});
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
