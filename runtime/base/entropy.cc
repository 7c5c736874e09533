#include "runtime/base/entropy.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"

namespace tandem {

std::string RandomBytes(size_t count) {
  constexpr size_t kMostAtOnce = 256;  // What getentropy gives.
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count; done += kMostAtOnce) {
    TANDEM_CHECK(getentropy(bytes.data() + done, std::min(kMostAtOnce, count - done)) == 0);
  }
  return bytes;
}

uint64_t RandomIdentity() {
  uint64_t number = 0;
  while (number == 0) {
    std::memcpy(&number, RandomBytes(sizeof(number)).data(), sizeof(number));
    number >>= 1;
  }
  return number;
}

}  // namespace tandem
