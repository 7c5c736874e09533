#include "runtime/base/entropy.h"

#include <random>

namespace tandem {

uint64_t RandomIdentity() {
  std::random_device device;
  uint64_t number = 0;
  while (number == 0) number = (uint64_t{device()} << 32 | device()) >> 1;
  return number;
}

}  // namespace tandem
