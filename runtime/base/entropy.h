// What no stranger can guess, from the kernel: the identity of one life of a process, names and
// tokens of links, nonces, secrets. What has to be replayed draws from base/random.h instead.

#ifndef TANDEM_RUNTIME_BASE_ENTROPY_H_
#define TANDEM_RUNTIME_BASE_ENTROPY_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

std::string RandomBytes(size_t count);

// 1 to 2^63 - 1.
uint64_t RandomIdentity();

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_ENTROPY_H_
