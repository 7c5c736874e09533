#include "kernels/cuda/emulated/warpgroup.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/emulated/tensor_core.h"

namespace tandem::emulated {
namespace {

constexpr int kWarp = 32;
constexpr int kRows = 64;
constexpr int kRowsOfWarp = 16;
constexpr int kSummed = 16;  // of bf16
constexpr int kInt8Summed = 32;
constexpr size_t kHalfBytes = 16;            // of a row of B
constexpr uint32_t kNoNumber = 0x7FC00000u;  // of f32, and an unlikely one of 32 bits

// A descriptor's fields, as the PTX manual has them; places count sixteen bytes.
constexpr uint64_t kPlaceBits = 0x3FFF;
constexpr int kStrideShift = 32;
constexpr int kBaseShift = 49;
constexpr int kSwizzleShift = 62;
constexpr uint64_t kSwizzle128 = 1;
constexpr size_t kRowBytes = 128;

bool IsModelled(uint64_t matrix) {
  return matrix >> kSwizzleShift == kSwizzle128 && (matrix >> kBaseShift & 7) == 0;
}

// Where half of the sixteen numbers of row n begins.
size_t HalfAt(uint64_t matrix, int n, size_t half) {
  const size_t start = (matrix & kPlaceBits) * 16;
  const size_t stride = (matrix >> kStrideShift & kPlaceBits) * 16;  // between eight rows
  const auto row = static_cast<size_t>(n);
  const size_t at = start + row / 8 * stride + row % 8 * kRowBytes + half * kHalfBytes;
  return at ^ (at >> 7 & 7) << 4;
}

// How a product of a warp has it, or, by halves, as some other GPU might.
float SumOf(float c, const uint16_t (&a)[kSummed], const uint16_t (&b)[kSummed], bool by_halves) {
  if (!by_halves) return TensorCoreSum(c, a, b);
  for (const int first : {0, kSummed / 2}) {
    uint16_t of_a[kSummed] = {};
    std::copy_n(a + first, kSummed / 2, of_a);
    uint16_t of_b[kSummed] = {};
    std::copy_n(b + first, kSummed / 2, of_b);
    c = TensorCoreSum(c, of_a, of_b);
  }
  return c;
}

// Sums of nothing but zeros are known.
bool AreZeros(const uint16_t (&numbers)[kSummed]) {
  return std::all_of(numbers, numbers + kSummed,
                     [](uint16_t bits) { return (bits & 0x7FFFu) == 0; });
}
bool AreFinite(const uint16_t (&numbers)[kSummed]) {
  return std::all_of(numbers, numbers + kSummed,
                     [](uint16_t bits) { return (bits & 0x7F80u) != 0x7F80u; });
}

// Who has row `row` and column n of D, and which of its numbers it is.
int LaneOf(int row, int n) {
  return row / kRowsOfWarp * kWarp + row % kRowsOfWarp % 8 * 4 + n % 8 / 2;
}
int NumberOf(int row, int n) { return n / 8 * 4 + row % kRowsOfWarp / 8 * 2 + n % 2; }

}  // namespace

WarpgroupProducts::Thread& WarpgroupProducts::Running() {
  return threads_[static_cast<size_t>(memory_->thread())];
}
WarpgroupProducts::Warpgroup& WarpgroupProducts::Group() {
  const auto index = static_cast<size_t>(memory_->thread() / kWarpgroupThreads);
  if (index >= groups_.size()) memory_->Fault("is in no warpgroup", 0);
  return groups_[index];
}

void WarpgroupProducts::Fence() { Running().fenced = true; }

void WarpgroupProducts::Begin(const ProductArgs& args) {
  Thread& thread = Running();
  Warpgroup& group = Group();
  if (!thread.fenced) memory_->Fault("begins a product without wgmma.fence", 0);
  if (!IsModelled(args.matrix)) memory_->Fault("begins a product of another layout", 0);
  const int lane = memory_->thread() % kWarpgroupThreads;
  const size_t index = thread.begun++ - group.gone;
  if (index == group.products.size()) {
    group.products.push_back({.args = args});
    for (int n = 0; n < args.columns; ++n) {
      memory_->CheckReadable(HalfAt(args.matrix, n, 0), kHalfBytes);
      memory_->CheckReadable(HalfAt(args.matrix, n, 1), kHalfBytes);
      memory_->Hold(HalfAt(args.matrix, n, 0), kHalfBytes);
      memory_->Hold(HalfAt(args.matrix, n, 1), kHalfBytes);
    }
  } else if (lane % kWarp == 0) {  // A warp has met the same barriers.
    for (int n = 0; n < args.columns; ++n) {
      memory_->CheckReadable(HalfAt(args.matrix, n, 0), kHalfBytes);
      memory_->CheckReadable(HalfAt(args.matrix, n, 1), kHalfBytes);
    }
  }
  Product& product = group.products[index];
  if (product.args.type != args.type || product.args.columns != args.columns ||
      product.args.matrix != args.matrix || product.args.adds != args.adds) {
    memory_->Fault("begins another product than its warpgroup", 0);
  }
  const auto count = static_cast<size_t>(args.columns / 2);
  const auto [it, is_new] = thread.accumulators.try_emplace(args.d);
  Accumulator& accumulator = it->second;
  if (is_new) {
    accumulator.numbers.resize(count);
    std::memcpy(accumulator.numbers.data(), args.d, count * sizeof(uint32_t));
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(static_cast<std::byte*>(args.d) + i * sizeof(kNoNumber), &kNoNumber,
                  sizeof(kNoNumber));
    }
  } else if (accumulator.numbers.size() != count) {
    memory_->Fault("adds a product of another shape to one that is under way", 0);
  }
  ++accumulator.products;
  product.a[lane] = args.a;
  product.d[lane] = args.d;
  if (++product.begun == kWarpgroupThreads) {
    memory_->Wake(memory_->thread() - lane, kWarpgroupThreads);
  }
}

void WarpgroupProducts::Commit() {
  Thread& thread = Running();
  thread.committed.push_back(thread.begun);
}

void WarpgroupProducts::Wait(int pending) {
  Thread& thread = Running();
  thread.fenced = false;
  while (std::ssize(thread.committed) > pending) {
    while (thread.landed < thread.committed.front()) Land();
    thread.committed.pop_front();
  }
}

bool WarpgroupProducts::AreUnderWay() const {
  const Thread& thread = threads_[static_cast<size_t>(memory_->thread())];
  return thread.landed < thread.begun;
}

// The running thread's next.
void WarpgroupProducts::Land() {
  Thread& thread = Running();
  Warpgroup& group = Group();
  const size_t index = thread.landed;
  const int lane = memory_->thread() % kWarpgroupThreads;
  const int first_thread = memory_->thread() - lane;
  while (group.products[index - group.gone].begun < kWarpgroupThreads) memory_->WaitInProduct();
  Product& product = group.products[index - group.gone];
  if (!product.done) Do(&product, first_thread);
  ++thread.landed;
  const auto it = thread.accumulators.find(product.d[lane]);
  if (--it->second.products == 0) {
    std::memcpy(product.d[lane], it->second.numbers.data(),
                it->second.numbers.size() * sizeof(uint32_t));
    thread.accumulators.erase(it);
  }
  if (lane % kWarp == 0) {  // A warp waits together.
    for (int n = 0; n < product.args.columns; ++n) {
      memory_->NoteRead(HalfAt(product.args.matrix, n, 0), kHalfBytes);
      memory_->NoteRead(HalfAt(product.args.matrix, n, 1), kHalfBytes);
    }
  }
  if (++product.landed < kWarpgroupThreads) return;
  for (int n = 0; n < product.args.columns; ++n) {
    memory_->Release(HalfAt(product.args.matrix, n, 0), kHalfBytes);
    memory_->Release(HalfAt(product.args.matrix, n, 1), kHalfBytes);
  }
  group.products.pop_front();  // All land in order.
  ++group.gone;
}

void WarpgroupProducts::Do(Product* product, int first_thread) {
  product->done = true;
  uint32_t* numbers[kWarpgroupThreads];
  for (int i = 0; i < kWarpgroupThreads; ++i) {
    Thread& thread = threads_[static_cast<size_t>(first_thread + i)];
    numbers[i] = thread.accumulators.at(product->d[i]).numbers.data();
  }
  if (product->args.type == ProductType::kInt8) {
    SumInt8(*product, numbers);
  } else {
    SumBf16(*product, numbers);
  }
}

// Lane l of a warp has of its sixteen rows of A those l / 4 and l / 4 + 8, of these the numbers
// 2 · (l % 4), the next, and both 8 on; of D of each eight columns 2 · (l % 4) and the next.
void WarpgroupProducts::SumBf16(const Product& product, uint32_t* (&numbers)[kWarpgroupThreads]) {
  uint16_t of_a[kRows][kSummed];
  bool is_zero[kRows];
  bool is_of_warp_before[kRows];  // Where it has the same place.
  for (int row = 0; row < kRows; ++row) {
    const int in_warp = row % kRowsOfWarp;
    for (int k = 0; k < kSummed; ++k) {
      const int lane = row / kRowsOfWarp * kWarp + in_warp % 8 * 4 + k % 8 / 2;
      const uint32_t word = product.a[lane][in_warp / 8 + k / 8 * 2];
      of_a[row][k] = static_cast<uint16_t>(word >> (16 * (k % 2)));
    }
    is_zero[row] = AreZeros(of_a[row]);
    is_of_warp_before[row] =
        row != in_warp && std::ranges::equal(of_a[row], of_a[row - kRowsOfWarp]);
  }
  for (int n = 0; n < product.args.columns; ++n) {
    uint16_t of_b[kSummed];
    CopyRow(product.args.matrix, n, of_b);
    const bool is_finite = AreFinite(of_b);
    const bool b_is_zero = AreZeros(of_b);
    uint32_t before[kRows];
    for (int row = 0; row < kRows; ++row) {
      uint32_t& d = numbers[LaneOf(row, n)][NumberOf(row, n)];
      before[row] = product.args.adds ? d : 0;
      const int other = row - kRowsOfWarp;
      if (is_of_warp_before[row] && before[row] == before[other]) {
        d = numbers[LaneOf(other, n)][NumberOf(other, n)];
        continue;
      }
      const auto c = std::bit_cast<float>(before[row]);
      const bool adds_zeros = (is_zero[row] && is_finite) || (b_is_zero && AreFinite(of_a[row]));
      const float sum = !adds_zeros || !std::isfinite(c) ? SumOf(c, of_a[row], of_b, by_halves_)
                        : c == 0.0f                      ? 0.0f
                                                         : c;
      d = std::bit_cast<uint32_t>(sum);
    }
  }
}

// The same of 32 numbers: the four 4 · (l % 4) and so on, and those 16 on.
void WarpgroupProducts::SumInt8(const Product& product, uint32_t* (&numbers)[kWarpgroupThreads]) {
  int8_t of_a[kRows][kInt8Summed];
  for (int row = 0; row < kRows; ++row) {
    const int in_warp = row % kRowsOfWarp;
    for (int k = 0; k < kInt8Summed; ++k) {
      const int lane = row / kRowsOfWarp * kWarp + in_warp % 8 * 4 + k % 16 / 4;
      const uint32_t word = product.a[lane][in_warp / 8 + k / 16 * 2];
      of_a[row][k] = static_cast<int8_t>(word >> (8 * (k % 4)));
    }
  }
  for (int n = 0; n < product.args.columns; ++n) {
    int8_t of_b[kInt8Summed];
    CopyRow(product.args.matrix, n, of_b);
    for (int row = 0; row < kRows; ++row) {
      uint32_t& d = numbers[LaneOf(row, n)][NumberOf(row, n)];
      int32_t sum = product.args.adds ? std::bit_cast<int32_t>(d) : 0;
      for (int k = 0; k < kInt8Summed; ++k) sum += of_a[row][k] * of_b[k];
      d = std::bit_cast<uint32_t>(sum);
    }
  }
}

// Row n of B.
template <typename T, size_t kCount>
void WarpgroupProducts::CopyRow(uint64_t matrix, int n, T (&to)[kCount]) const {
  static_assert(sizeof(to) == 2 * kHalfBytes);
  for (size_t half = 0; half < 2; ++half) {
    std::memcpy(to + half * (kCount / 2), memory_->bytes() + HalfAt(matrix, n, half), kHalfBytes);
  }
}

}  // namespace tandem::emulated
