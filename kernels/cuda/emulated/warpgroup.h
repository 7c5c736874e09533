// Products of four warps (wgmma.mma_async), as the PTX manual defines them: 64 rows of A, sixteen
// numbers of bf16 or 32 of 8 bits each, which the threads have in registers, by a matrix B in
// shared memory.
//
// They are done as late as they may be, when a thread waits for them. Until then the accumulators
// are no numbers, A is read from where it was said to be, and what of B is written anew is a fault.
// All 128 threads take part, each in its own time.

#ifndef TANDEM_KERNELS_CUDA_EMULATED_WARPGROUP_H_
#define TANDEM_KERNELS_CUDA_EMULATED_WARPGROUP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace tandem::emulated {

inline constexpr int kWarpgroupThreads = 128;

enum class ProductType : uint8_t { kBf16, kInt8 };

// What a thread says of a product.
struct ProductArgs {
  ProductType type;
  void* d;            // columns / 2 numbers, of f32 or of 32 bits
  int columns;        // of B and D
  const uint32_t* a;  // 4 words
  uint64_t matrix;
  bool adds;  // to what D has
};

// The block, to its products. The running thread does all this.
class ProductMemory {
 public:
  virtual ~ProductMemory() = default;
  virtual int thread() const = 0;
  virtual const std::byte* bytes() const = 0;
  // A product may read these: it is a fault if what is there may not have been seen.
  virtual void CheckReadable(size_t offset, size_t bytes) = 0;
  // A product reads these between the two.
  virtual void Hold(size_t offset, size_t bytes) = 0;
  virtual void Release(size_t offset, size_t bytes) = 0;
  // A product has read these for the running thread's warp.
  virtual void NoteRead(size_t offset, size_t bytes) = 0;
  virtual void WaitInProduct() = 0;  // until somebody wakes it
  virtual void Wake(int first, int count) = 0;
  [[noreturn]] virtual void Fault(const char* what, size_t offset) = 0;
};

// All of a block. The running thread:
class WarpgroupProducts {
 public:
  WarpgroupProducts(ProductMemory* memory, int64_t threads, bool by_halves)
      : memory_(memory),
        by_halves_(by_halves),
        threads_(static_cast<size_t>(threads)),
        groups_(static_cast<size_t>(threads) / kWarpgroupThreads) {}

  void Fence();
  void Begin(const ProductArgs& args);
  void Commit();
  void Wait(int pending);
  bool AreUnderWay() const;

 private:
  // Numbers on their way to registers, as bits.
  struct Accumulator {
    std::vector<uint32_t> numbers;
    int products = 0;  // under way
  };
  struct Thread {
    bool fenced = false;
    size_t begun = 0;              // products of its warpgroup
    size_t landed = 0;             // of these
    std::deque<size_t> committed;  // where each group ends
    std::map<void*, Accumulator> accumulators;
  };
  struct Product {
    ProductArgs args;
    const uint32_t* a[kWarpgroupThreads];
    void* d[kWarpgroupThreads];
    int begun = 0;
    int landed = 0;
    bool done = false;
  };
  struct Warpgroup {
    std::deque<Product> products;
    size_t gone = 0;  // before the first of these
  };

  Thread& Running();
  Warpgroup& Group();
  void Land();
  void Do(Product* product, int first_thread);
  void SumBf16(const Product& product, uint32_t* (&numbers)[kWarpgroupThreads]);
  void SumInt8(const Product& product, uint32_t* (&numbers)[kWarpgroupThreads]);
  template <typename T, size_t kCount>
  void CopyRow(uint64_t matrix, int n, T (&to)[kCount]) const;

  ProductMemory* const memory_;
  const bool by_halves_;
  std::vector<Thread> threads_;
  std::vector<Warpgroup> groups_;
};

}  // namespace tandem::emulated

#endif  // TANDEM_KERNELS_CUDA_EMULATED_WARPGROUP_H_
