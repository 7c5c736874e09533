// The floating-point environment of every kernel on a CPU: round to nearest, denormals read and
// written as zero, no traps. vdpbf16ps works like this whatever MXCSR says; setting it makes
// ordinary fused multiply-adds give the very bits of vdpbf16ps (kernels/cpu/micro_kernel.h), and a
// library that changed MXCSR cannot change ours.

#ifndef TANDEM_KERNELS_API_FLOAT_ENVIRONMENT_H_
#define TANDEM_KERNELS_API_FLOAT_ENVIRONMENT_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tandem {

inline uint32_t FloatEnvironment() {
#if defined(__x86_64__)
  return _mm_getcsr();
#else
  return 0;
#endif
}

inline void SetFloatEnvironment(uint32_t value) {
#if defined(__x86_64__)
  _mm_setcsr(value);
#endif
}

inline void SetKernelFloatEnvironment() {
  SetFloatEnvironment(0x9FC0);  // flush to zero, denormals are zero, all exceptions masked
}

// On the calling thread, for the length of an operation.
class KernelFloatScope {
 public:
  KernelFloatScope() : saved_(FloatEnvironment()) { SetKernelFloatEnvironment(); }
  ~KernelFloatScope() { SetFloatEnvironment(saved_); }
  KernelFloatScope(const KernelFloatScope&) = delete;
  KernelFloatScope& operator=(const KernelFloatScope&) = delete;

 private:
  const uint32_t saved_;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_FLOAT_ENVIRONMENT_H_
