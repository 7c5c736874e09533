#include "runtime/base/entropy.h"

#include <unistd.h>

#include <algorithm>
#include <random>

#include "runtime/base/check.h"

namespace tandem {

uint64_t RandomIdentity() {
  std::random_device device;
  uint64_t number = 0;
  while (number == 0) number = (uint64_t{device()} << 32 | device()) >> 1;
  return number;
}

std::string RandomBytes(size_t count) {
  constexpr size_t kMostAtOnce = 256;  // Of getentropy.
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count; done += kMostAtOnce) {
    TANDEM_CHECK(getentropy(bytes.data() + done, std::min(kMostAtOnce, count - done)) == 0);
  }
  return bytes;
}

}  // namespace tandem
