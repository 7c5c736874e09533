// Numbers that nobody can foresee, for the identity of one life of a process. What has to be
// replayed draws from base/random.h instead.

#ifndef TANDEM_RUNTIME_BASE_ENTROPY_H_
#define TANDEM_RUNTIME_BASE_ENTROPY_H_

#include <cstdint>

namespace tandem {

// 1 to 2^63 - 1, from the kernel's entropy.
uint64_t RandomIdentity();

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_ENTROPY_H_
