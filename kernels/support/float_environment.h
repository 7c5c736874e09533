// The floating-point environment of every kernel but sampling on a CPU: round to nearest, denormals
// read and written as zero, no traps. vdpbf16ps works like this whatever MXCSR says; setting it
// makes ordinary fused multiply-adds give the very bits of vdpbf16ps (kernels/cpu/micro_kernel.h),
// and a library that changed MXCSR cannot change ours.

#ifndef TANDEM_KERNELS_SUPPORT_FLOAT_ENVIRONMENT_H_
#define TANDEM_KERNELS_SUPPORT_FLOAT_ENVIRONMENT_H_

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

// Flush to zero, denormals are zero, all exceptions masked.
inline constexpr uint32_t kKernelFloats = 0x9FC0;
// Denormals as they are: a temperature may be one.
inline constexpr uint32_t kIeeeFloats = 0x1F80;

inline void SetKernelFloatEnvironment() { SetFloatEnvironment(kKernelFloats); }

// On the calling thread, for the length of an operation.
template <uint32_t kEnvironment>
class FloatScope {
 public:
  FloatScope() : saved_(FloatEnvironment()) { SetFloatEnvironment(kEnvironment); }
  ~FloatScope() { SetFloatEnvironment(saved_); }
  FloatScope(const FloatScope&) = delete;
  FloatScope& operator=(const FloatScope&) = delete;

 private:
  const uint32_t saved_;
};
using KernelFloatScope = FloatScope<kKernelFloats>;
using IeeeFloatScope = FloatScope<kIeeeFloats>;

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_FLOAT_ENVIRONMENT_H_
