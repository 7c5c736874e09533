// Sixteen lanes in as many registers as the instruction set needs: two with AVX2, four with NEON or
// the baseline of x86.
// A structure of registers, as GCC keeps vectors longer than a register in memory. See lanes.h.

#ifndef TANDEM_KERNELS_CPU_LANES_PARTS_H_
#define TANDEM_KERNELS_CPU_LANES_PARTS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(TANDEM_NEON)
#include <arm_neon.h>
#endif

namespace tandem {
namespace {

#if defined(__AVX2__)
constexpr int kRegisterLanes = 8;
#else
constexpr int kRegisterLanes = 4;
#endif
constexpr int kParts = 16 / kRegisterLanes;

template <typename T>
struct Lanes {
  typedef T Register __attribute__((vector_size(sizeof(T) * kRegisterLanes)));
  Register part[kParts];
};
using F32x16 = Lanes<float>;
using U32x16 = Lanes<uint32_t>;
using I32x16 = Lanes<int32_t>;
using U16x16 = Lanes<uint16_t>;

// Every operation is one a register.
#define TANDEM_FOR_PARTS(i) _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)

#define TANDEM_LANES_OPERATOR(Result, op)                                         \
  template <typename T>                                                           \
  TANDEM_LANES Result operator op(const Lanes<T>& a, const Lanes<T>& b) {         \
    Result y;                                                                     \
    TANDEM_FOR_PARTS(i) y.part[i] = a.part[i] op b.part[i];                       \
    return y;                                                                     \
  }                                                                               \
  template <typename T>                                                           \
  TANDEM_LANES Result operator op(const Lanes<T>& a, std::type_identity_t<T> b) { \
    Result y;                                                                     \
    TANDEM_FOR_PARTS(i) y.part[i] = a.part[i] op b;                               \
    return y;                                                                     \
  }                                                                               \
  template <typename T>                                                           \
  TANDEM_LANES Result operator op(std::type_identity_t<T> a, const Lanes<T>& b) { \
    Result y;                                                                     \
    TANDEM_FOR_PARTS(i) y.part[i] = a op b.part[i];                               \
    return y;                                                                     \
  }
TANDEM_LANES_OPERATOR(Lanes<T>, +)
TANDEM_LANES_OPERATOR(Lanes<T>, -)
TANDEM_LANES_OPERATOR(Lanes<T>, *)
TANDEM_LANES_OPERATOR(Lanes<T>, /)
TANDEM_LANES_OPERATOR(Lanes<T>, &)
TANDEM_LANES_OPERATOR(Lanes<T>, |)
TANDEM_LANES_OPERATOR(Lanes<T>, ^)
TANDEM_LANES_OPERATOR(I32x16, <)
TANDEM_LANES_OPERATOR(I32x16, >)
#undef TANDEM_LANES_OPERATOR

template <typename T>
TANDEM_LANES Lanes<T> operator<<(Lanes<T> x, int count) {
  TANDEM_FOR_PARTS(i) x.part[i] = x.part[i] << count;
  return x;
}
template <typename T>
TANDEM_LANES Lanes<T> operator>>(Lanes<T> x, int count) {
  TANDEM_FOR_PARTS(i) x.part[i] = x.part[i] >> count;
  return x;
}
template <typename T>
TANDEM_LANES Lanes<T> operator-(Lanes<T> x) {
  TANDEM_FOR_PARTS(i) x.part[i] = -x.part[i];
  return x;
}
template <typename T>
TANDEM_LANES Lanes<T> operator~(Lanes<T> x) {
  TANDEM_FOR_PARTS(i) x.part[i] = ~x.part[i];
  return x;
}

// The same bits as another type.
template <typename To, typename From>
TANDEM_LANES Lanes<To> Cast(const Lanes<From>& x) {
  Lanes<To> y;
  TANDEM_FOR_PARTS(i) y.part[i] = (typename Lanes<To>::Register)x.part[i];
  return y;
}
TANDEM_LANES U32x16 BitsOf(const F32x16& x) { return Cast<uint32_t>(x); }
TANDEM_LANES F32x16 FloatsOf(const U32x16& x) { return Cast<float>(x); }
TANDEM_LANES I32x16 SignedOf(const U32x16& x) { return Cast<int32_t>(x); }
TANDEM_LANES U32x16 UnsignedOf(const I32x16& x) { return Cast<uint32_t>(x); }

TANDEM_LANES F32x16 Splat(float x) {
#if defined(__AVX2__)
  const F32x16::Register all = _mm256_set1_ps(x);
#else
  const F32x16::Register all = {x, x, x, x};
#endif
  F32x16 y;
  TANDEM_FOR_PARTS(i) y.part[i] = all;
  return y;
}
TANDEM_LANES U32x16 SplatU32(uint32_t x) { return BitsOf(Splat(__builtin_bit_cast(float, x))); }

TANDEM_LANES I32x16 LaneNumbers() {
  I32x16 y;
  TANDEM_FOR_PARTS(i) {
#pragma GCC unroll 8
    for (int lane = 0; lane < kRegisterLanes; ++lane) y.part[i][lane] = i * kRegisterLanes + lane;
  }
  return y;
}

template <typename T>
TANDEM_LANES Lanes<T> LoadParts(const void* from) {
  Lanes<T> x;
  TANDEM_FOR_PARTS(i) {
    std::memcpy(&x.part[i], static_cast<const T*>(from) + i * kRegisterLanes, sizeof(x.part[i]));
  }
  return x;
}
template <typename T>
TANDEM_LANES void StoreParts(T* to, const Lanes<T>& x) {
  TANDEM_FOR_PARTS(i) std::memcpy(to + i * kRegisterLanes, &x.part[i], sizeof(x.part[i]));
}
TANDEM_LANES F32x16 LoadF32(const float* from) { return LoadParts<float>(from); }
TANDEM_LANES void StoreF32(float* to, const F32x16& x) { StoreParts(to, x); }
TANDEM_LANES U32x16 LoadU32(const void* from) { return LoadParts<uint32_t>(from); }
TANDEM_LANES U16x16 LoadU16(const uint16_t* from) { return LoadParts<uint16_t>(from); }
TANDEM_LANES void StoreU16(uint16_t* to, const U16x16& x) { StoreParts(to, x); }

// The first `count` lanes, 1 to 15; zeros after them.
TANDEM_LANES F32x16 LoadF32Tail(const float* from, int count) {
  float lanes[16] = {};
  std::memcpy(lanes, from, sizeof(float) * count);
  return LoadF32(lanes);
}
TANDEM_LANES void StoreF32Tail(float* to, const F32x16& x, int count) {
  float lanes[16];
  StoreF32(lanes, x);
  std::memcpy(to, lanes, sizeof(float) * count);
}
TANDEM_LANES U16x16 LoadU16Tail(const uint16_t* from, int count) {
  uint16_t lanes[16] = {};
  std::memcpy(lanes, from, sizeof(uint16_t) * count);
  return LoadU16(lanes);
}
TANDEM_LANES void StoreU16Tail(uint16_t* to, const U16x16& x, int count) {
  uint16_t lanes[16];
  StoreU16(lanes, x);
  std::memcpy(to, lanes, sizeof(uint16_t) * count);
}

TANDEM_LANES U32x16 WidenU16(const U16x16& x) {
  U32x16 y;
  TANDEM_FOR_PARTS(i) y.part[i] = __builtin_convertvector(x.part[i], U32x16::Register);
  return y;
}
TANDEM_LANES U16x16 NarrowU16(const U32x16& x) {
  U16x16 y;
  TANDEM_FOR_PARTS(i) y.part[i] = __builtin_convertvector(x.part[i], U16x16::Register);
  return y;
}

TANDEM_LANES F32x16 Select(const I32x16& condition, const F32x16& yes, const F32x16& no) {
  F32x16 y;
  TANDEM_FOR_PARTS(i) y.part[i] = condition.part[i] ? yes.part[i] : no.part[i];
  return y;
}
TANDEM_LANES F32x16 MaxOf(const F32x16& a, const F32x16& b) { return Select(a > b, a, b); }

TANDEM_LANES F32x16 MulAdd(const F32x16& a, const F32x16& b, const F32x16& c) {
#if defined(__FMA__)
  // The form that adds in place, which GCC does not always choose: sums that move between registers
  // spill where sixteen just hold them.
  F32x16 y = c;
  TANDEM_FOR_PARTS(i) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(y.part[i]) : "x"(a.part[i]), "x"(b.part[i]));
  }
  return y;
#elif defined(TANDEM_NEON)
  F32x16 y;
  TANDEM_FOR_PARTS(i) {
    y.part[i] = (F32x16::Register)vfmaq_f32((float32x4_t)c.part[i], (float32x4_t)a.part[i],
                                            (float32x4_t)b.part[i]);
  }
  return y;
#else
  return c + a * b;
#endif
}

TANDEM_LANES F32x16 ToFloats(const I32x16& x) {
  F32x16 y;
  TANDEM_FOR_PARTS(i) y.part[i] = __builtin_convertvector(x.part[i], F32x16::Register);
  return y;
}

#if defined(__AVX2__)
// acc + x, in place as MulAdd is, and for the same reason.
TANDEM_LANES I32x16::Register AddInPlace(I32x16::Register acc, __m256i x) {
  __asm__("vpaddd %1, %0, %0" : "+x"(acc) : "x"(x));
  return acc;
}
#endif

// Each lane is two numbers of 16 bits: acc + a.low · b.low + a.high · b.high.
TANDEM_LANES I32x16 AddPairProducts(const I32x16& acc, const U32x16& a, const U32x16& b) {
  I32x16 y;
#if defined(__AVX2__)
  TANDEM_FOR_PARTS(i) {
    y.part[i] = AddInPlace(acc.part[i], _mm256_madd_epi16((__m256i)a.part[i], (__m256i)b.part[i]));
  }
#elif defined(TANDEM_NEON)
  TANDEM_FOR_PARTS(i) {
    const auto x = (int16x8_t)a.part[i], z = (int16x8_t)b.part[i];
    const int32x4_t left = vmull_s16(vget_low_s16(x), vget_low_s16(z));
    y.part[i] = acc.part[i] + (I32x16::Register)vpaddq_s32(left, vmull_high_s16(x, z));
  }
#else
  const auto low = [](auto x) __attribute__((always_inline)) {
    return (I32x16::Register)(x << 16) >> 16;
  };
  const auto high = [](auto x) __attribute__((always_inline)) { return (I32x16::Register)x >> 16; };
  TANDEM_FOR_PARTS(i) {
    y.part[i] = acc.part[i] + low(a.part[i]) * low(b.part[i]) + high(a.part[i]) * high(b.part[i]);
  }
#endif
  return y;
}
#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
// The same instruction in two encodings.
#if defined(__AVXVNNI__)
#define TANDEM_VPDPBUSD "%{vex%} vpdpbusd"
#else
#define TANDEM_VPDPBUSD "vpdpbusd"
#endif
// Each lane is four bytes, those of `a` without a sign: acc + their four products. In place, as
// MulAdd is.
TANDEM_LANES I32x16 AddQuadProducts(const I32x16& acc, const U32x16& a, const U32x16& b) {
  I32x16 y = acc;
  TANDEM_FOR_PARTS(i) {
    __asm__(TANDEM_VPDPBUSD " %2, %1, %0" : "+x"(y.part[i]) : "x"(a.part[i]), "x"(b.part[i]));
  }
  return y;
}
#undef TANDEM_VPDPBUSD
#elif defined(__ARM_FEATURE_DOTPROD)
// Each lane is four numbers of 8 bits, with signs: acc + their four products.
TANDEM_LANES I32x16 AddQuadProducts(const I32x16& acc, const U32x16& a, const U32x16& b) {
  I32x16 y;
  TANDEM_FOR_PARTS(i) {
    y.part[i] = (I32x16::Register)vdotq_s32((int32x4_t)acc.part[i], (int8x16_t)a.part[i],
                                            (int8x16_t)b.part[i]);
  }
  return y;
}
#endif
// Bytes 0 and 2, or 1 and 3, of each lane as two numbers of 16 bits.
TANDEM_LANES U32x16 EvenBytes(const U32x16& x) { return x & 0x00FF00FFu; }
TANDEM_LANES U32x16 OddBytes(const U32x16& x) {
#if defined(__AVX2__)
  U32x16 y;
  TANDEM_FOR_PARTS(i) y.part[i] = (U32x16::Register)_mm256_srli_epi16((__m256i)x.part[i], 8);
  return y;
#else
  return (x >> 8) & 0x00FF00FFu;
#endif
}
TANDEM_LANES I32x16 LoadInt8(const int8_t* from) {
  I32x16 y;
#if defined(__AVX2__)
  TANDEM_FOR_PARTS(i) {
    const auto* const eight = reinterpret_cast<const __m128i*>(from + i * kRegisterLanes);
    y.part[i] = (I32x16::Register)_mm256_cvtepi8_epi32(_mm_loadl_epi64(eight));
  }
#elif defined(__SSE2__)
  // Each byte becomes the highest of a lane, which is shifted down with its sign.
  const __m128i zero = _mm_setzero_si128();
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i halves[] = {_mm_unpacklo_epi8(zero, bytes), _mm_unpackhi_epi8(zero, bytes)};
  TANDEM_FOR_PARTS(i) {
    const __m128i high = i % 2 == 0 ? _mm_unpacklo_epi16(zero, halves[i / 2])
                                    : _mm_unpackhi_epi16(zero, halves[i / 2]);
    y.part[i] = (I32x16::Register)_mm_srai_epi32(high, 24);
  }
#else
  typedef int8_t Bytes __attribute__((vector_size(kRegisterLanes)));
  TANDEM_FOR_PARTS(i) {
    Bytes bytes;
    std::memcpy(&bytes, from + i * kRegisterLanes, sizeof(bytes));
    y.part[i] = __builtin_convertvector(bytes, I32x16::Register);
  }
#endif
  return y;
}
// Each lane is four bytes, those of `a` without a sign and at most 127, of `b` from -127 on: acc +
// the sum of their products.
TANDEM_LANES I32x16 AddByteProducts(const I32x16& acc, const U32x16& a, const U32x16& b) {
  I32x16 y;
#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
  y = AddQuadProducts(acc, a, b);
#elif defined(__AVX2__)
  TANDEM_FOR_PARTS(i) {
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)a.part[i], (__m256i)b.part[i]);
    y.part[i] = acc.part[i] + (I32x16::Register)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
#elif defined(__ARM_FEATURE_DOTPROD)
  y = AddQuadProducts(acc, a, b);
#elif defined(TANDEM_NEON)
  TANDEM_FOR_PARTS(i) {
    const auto x = (int8x16_t)a.part[i], z = (int8x16_t)b.part[i];
    const int32x4_t left = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(z)));
    const int32x4_t sums = vpaddq_s32(left, vpaddlq_s16(vmull_high_s8(x, z)));
    y.part[i] = acc.part[i] + (I32x16::Register)sums;
  }
#else
  TANDEM_FOR_PARTS(i) {
    y.part[i] = acc.part[i];
#pragma GCC unroll 4
    for (int bits = 0; bits < 32; bits += 8) {
      y.part[i] += (I32x16::Register)(a.part[i] >> bits & 0xFFu) *
                   ((I32x16::Register)(b.part[i] << (24 - bits)) >> 24);
    }
  }
#endif
  return y;
}
TANDEM_LANES U32x16 LoadU8(const uint8_t* from) {
  return UnsignedOf(LoadInt8(reinterpret_cast<const int8_t*>(from))) & 0xFFu;
}
TANDEM_LANES U16x16 WidenU8(const uint8_t* from) {
  typedef uint8_t Bytes __attribute__((vector_size(kRegisterLanes)));
  U16x16 y;
  TANDEM_FOR_PARTS(i) {
    Bytes bytes;
    std::memcpy(&bytes, from + i * kRegisterLanes, sizeof(bytes));
    y.part[i] = __builtin_convertvector(bytes, U16x16::Register);
  }
  return y;
}
// Numbers that fit.
TANDEM_LANES void StoreInt8(int8_t* to, const I32x16& x) {
  typedef int8_t Bytes __attribute__((vector_size(kRegisterLanes)));
  TANDEM_FOR_PARTS(i) {
    const Bytes bytes = __builtin_convertvector(x.part[i], Bytes);
    std::memcpy(to + i * kRegisterLanes, &bytes, sizeof(bytes));
  }
}

// Lane 2 · kPair in the first eight lanes, the next one in the others.
template <int kPair>
TANDEM_LANES F32x16 SplatPair(const F32x16& x) {
  F32x16 y;
  TANDEM_FOR_PARTS(i) {
    const int lane = 2 * kPair + (i >= kParts / 2);
    const auto from = (U32x16::Register){} + static_cast<uint32_t>(lane % kRegisterLanes);
    y.part[i] = __builtin_shuffle(x.part[lane / kRegisterLanes], from);
  }
  return y;
}
// Lanes 2i and 2i + 1 change places.
TANDEM_LANES F32x16 SwapPairs(const F32x16& x) {
  const auto index = UnsignedOf(LaneNumbers());
  F32x16 y;
  TANDEM_FOR_PARTS(i) y.part[i] = __builtin_shuffle(x.part[i], (index.part[0] ^ 1u));
  return y;
}

// Four lanes that `op` has made of sixteen, by the first two levels of SumLanes' tree.
#if defined(__AVX2__)
#define TANDEM_FOUR_OF(op, x)                                             \
  const auto eight = op((x).part[0], (x).part[1]);                        \
  const auto four = op(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), \
                       __builtin_shufflevector(eight, eight, 4, 5, 6, 7))
#else
#define TANDEM_FOUR_OF(op, x) \
  const auto four = op(op((x).part[0], (x).part[2]), op((x).part[1], (x).part[3]))
#endif

TANDEM_LANES float SumOf(const F32x16& x) {
  const auto add = [](auto a, auto b) __attribute__((always_inline)) { return a + b; };
  TANDEM_FOUR_OF(add, x);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

TANDEM_LANES float MaxOfLanes(const F32x16& x) {
  const auto max = [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; };
  TANDEM_FOUR_OF(max, x);
  return max(max(four[0], four[2]), max(four[1], four[3]));
}
#undef TANDEM_FOUR_OF

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_LANES_PARTS_H_
