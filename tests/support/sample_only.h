#ifndef TANDEM_TESTS_SUPPORT_SAMPLE_ONLY_H_
#define TANDEM_TESTS_SUPPORT_SAMPLE_ONLY_H_

namespace tandem {

// Builds with sanitizers and those that an emulator runs are many times slower and look for other
// mistakes: they run a sample.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(TANDEM_IS_EMULATED)
inline constexpr bool kSampleOnly = true;
#else
inline constexpr bool kSampleOnly = false;
#endif

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_SAMPLE_ONLY_H_
