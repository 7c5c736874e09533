#include "runtime/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define TANDEM_CRC32C __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define TANDEM_CRC32C __attribute__((target("+crc")))
#endif

namespace tandem {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // Reflected.

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

// All functions below work on the raw register: no inversion before or after.
uint32_t ExtendScalar(uint32_t crc, const uint8_t* data, size_t size) {
  for (size_t i = 0; i < size; ++i) crc = (crc >> 8) ^ kTable[(crc ^ data[i]) & 255];
  return crc;
}

#if defined(TANDEM_CRC32C)

// What the machine's instructions do: the register after a byte, and after 16 bytes, which are
// copied on the way.
#if defined(__x86_64__)
TANDEM_CRC32C inline uint32_t AddByte(uint32_t crc, uint8_t byte) {
  return _mm_crc32_u8(crc, byte);
}

template <bool kCopy>
TANDEM_CRC32C inline void AddWords(uint64_t& register64, uint8_t* out, const uint8_t* in) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
  if constexpr (kCopy) _mm_storeu_si128(reinterpret_cast<__m128i*>(out), words);
  register64 = _mm_crc32_u64(register64, _mm_cvtsi128_si64(words));
  register64 = _mm_crc32_u64(register64, _mm_extract_epi64(words, 1));
}

bool HasInstructions() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}
#else
TANDEM_CRC32C inline uint32_t AddByte(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }

template <bool kCopy>
TANDEM_CRC32C inline void AddWords(uint64_t& register64, uint8_t* out, const uint8_t* in) {
  uint64_t words[2];
  std::memcpy(words, in, sizeof(words));
  if constexpr (kCopy) std::memcpy(out, words, sizeof(words));
  const uint32_t crc = __crc32cd(static_cast<uint32_t>(register64), words[0]);
  register64 = __crc32cd(crc, words[1]);
}

bool HasInstructions() {
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
  return has;
}
#endif

// Three streams of kLane bytes hide the latency of the crc32 instruction; their registers are
// joined by advancing the earlier ones over kLane and 2 kLane zero bytes (a linear map over GF(2),
// tabulated by byte of the register). After Gopal et al., "Fast CRC computation for iSCSI
// polynomial using CRC32 instruction", Intel, 2011. The streams lie close together, so that to the
// prefetchers of the hardware they are one.
constexpr size_t kLane = 256;

struct ZeroAdvance {
  std::array<std::array<uint32_t, 256>, 4> table;
};

ZeroAdvance MakeZeroAdvance(size_t zero_bytes) {
  std::array<uint32_t, 32> column;
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t crc = 1u << bit;
    for (size_t i = 0; i < zero_bytes; ++i) crc = (crc >> 8) ^ kTable[crc & 255];
    column[bit] = crc;
  }
  ZeroAdvance advance;
  for (int byte = 0; byte < 4; ++byte) {
    for (int value = 0; value < 256; ++value) {
      uint32_t crc = 0;
      for (int bit = 0; bit < 8; ++bit) {
        if (value & (1 << bit)) crc ^= column[8 * byte + bit];
      }
      advance.table[byte][value] = crc;
    }
  }
  return advance;
}

uint32_t Apply(const ZeroAdvance& advance, uint32_t crc) {
  return advance.table[0][crc & 255] ^ advance.table[1][(crc >> 8) & 255] ^
         advance.table[2][(crc >> 16) & 255] ^ advance.table[3][crc >> 24];
}

template <bool kCopy>
TANDEM_CRC32C uint32_t ExtendByInstructions(uint32_t crc, uint8_t* out, const uint8_t* in,
                                            size_t size) {
  static const ZeroAdvance* const one = new ZeroAdvance(MakeZeroAdvance(kLane));
  static const ZeroAdvance* const two = new ZeroAdvance(MakeZeroAdvance(2 * kLane));
  const auto step = [&](uint64_t& register64, size_t offset) TANDEM_CRC32C {
    AddWords<kCopy>(register64, kCopy ? out + offset : nullptr, in + offset);
  };
  size_t done = 0;
  uint64_t a = crc;
  for (; size - done >= 3 * kLane; done += 3 * kLane) {
    uint64_t b = 0, c = 0;
    for (size_t i = 0; i < kLane; i += 16) {
      step(a, done + i);
      step(b, done + kLane + i);
      step(c, done + 2 * kLane + i);
    }
    a = Apply(*two, static_cast<uint32_t>(a)) ^ Apply(*one, static_cast<uint32_t>(b)) ^
        static_cast<uint32_t>(c);
  }
  for (; size - done >= 16; done += 16) step(a, done);
  uint32_t rest = static_cast<uint32_t>(a);
  for (; done < size; ++done) {
    if constexpr (kCopy) out[done] = in[done];
    rest = AddByte(rest, in[done]);
  }
  return rest;
}

#endif  // TANDEM_CRC32C

}  // namespace

uint32_t Crc32c(const void* data, size_t size_bytes, uint32_t crc) {
  const auto* in = static_cast<const uint8_t*>(data);
#if defined(TANDEM_CRC32C)
  if (HasInstructions()) return ~ExtendByInstructions<false>(~crc, nullptr, in, size_bytes);
#endif
  return ~ExtendScalar(~crc, in, size_bytes);
}

uint32_t Crc32cCopy(void* destination, const void* source, size_t size_bytes, uint32_t crc) {
#if defined(TANDEM_CRC32C)
  if (HasInstructions()) {
    return ~ExtendByInstructions<true>(~crc, static_cast<uint8_t*>(destination),
                                       static_cast<const uint8_t*>(source), size_bytes);
  }
#endif
  // What was written is checksummed: the source may be another process's memory, and change
  // meanwhile.
  std::memcpy(destination, source, size_bytes);
  return ~ExtendScalar(~crc, static_cast<const uint8_t*>(destination), size_bytes);
}

}  // namespace tandem
