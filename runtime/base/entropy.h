// What nobody can foresee: the identity of one life of a process, nonces, secrets. What has to be
// replayed draws from base/random.h instead.

#ifndef TANDEM_RUNTIME_BASE_ENTROPY_H_
#define TANDEM_RUNTIME_BASE_ENTROPY_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

// 1 to 2^63 - 1, from the kernel's entropy.
uint64_t RandomIdentity();

// The kernel's own.
std::string RandomBytes(size_t count);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_ENTROPY_H_
