// The reference backend: plain scalar code on one thread. It is the specification of every
// operation and of the order of every sum; nothing here is clever, and nothing is meant to be
// fast. What it computes with separate multiplications and additions another class may fuse.

#ifndef TANDEM_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
#define TANDEM_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

#include <memory>

#include "kernels/api/backend.h"

namespace tandem {

std::unique_ptr<Backend> CreateReferenceBackend();

}  // namespace tandem

#endif  // TANDEM_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
