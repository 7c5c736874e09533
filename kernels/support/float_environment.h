// The floating-point environment of every kernel but sampling on a CPU: round to nearest, denormals
// read and written as zero, no traps. vdpbf16ps works like this whatever MXCSR says; setting it
// makes ordinary fused multiply-adds give the very bits of vdpbf16ps (kernels/cpu/micro_kernel.h),
// and a library that changed MXCSR cannot change ours.
//
// What is a denormal and so written as zero an x86 decides after rounding: a result just below
// 2^-126 that rounds to it is kept. ARM decides before, and writes zero there, but where a machine
// can be asked to behave otherwise (FEAT_AFP).

#ifndef TANDEM_KERNELS_SUPPORT_FLOAT_ENVIRONMENT_H_
#define TANDEM_KERNELS_SUPPORT_FLOAT_ENVIRONMENT_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace tandem {

#if defined(__aarch64__)
// Bits of FPCR: to write denormals as zero, and to read them so where AH changes what FZ is.
inline constexpr uint32_t kFpcrFz = 1u << 24;
inline constexpr uint32_t kFpcrAh = 1u << 1;
inline constexpr uint32_t kFpcrFiz = 1u << 0;

// A register says so, which Linux lets programs read. Linux has it in its list of what a machine
// can do, too, but emulators have not.
inline bool MachineHasAlternateFloats() {
  static const bool has = [] {
    if ((getauxval(AT_HWCAP) & HWCAP_CPUID) == 0) return false;
    uint64_t features;
    __asm__("mrs %0, id_aa64mmfr1_el1" : "=r"(features));
    return (features >> 44 & 15) != 0;
  }();
  return has;
}
#endif

inline uint32_t FloatEnvironment() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t value;
  __asm__ volatile("mrs %0, fpcr" : "=r"(value));
  return static_cast<uint32_t>(value);
#else
  return 0;
#endif
}

inline void SetFloatEnvironment(uint32_t value) {
#if defined(__x86_64__)
  _mm_setcsr(value);
#elif defined(__aarch64__)
  const uint64_t here = MachineHasAlternateFloats() ? value : value & ~uint64_t{kFpcrAh | kFpcrFiz};
  __asm__ volatile("msr fpcr, %0" : : "r"(here) : "memory");
#endif
}

// kKernelFloats: flush to zero, denormals are zero, all exceptions masked. kIeeeFloats: denormals
// as they are, for a temperature may be one.
#if defined(__aarch64__)
inline constexpr uint32_t kKernelFloats = kFpcrFz | kFpcrAh | kFpcrFiz;
inline constexpr uint32_t kIeeeFloats = 0;
#else
inline constexpr uint32_t kKernelFloats = 0x9FC0;
inline constexpr uint32_t kIeeeFloats = 0x1F80;
#endif

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
