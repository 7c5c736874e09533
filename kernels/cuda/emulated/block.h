// A block of threads without a GPU: each thread is a fiber, and between two points at which threads
// wait for each other they run in an order drawn from a seed. So a barrier that is missing gives
// wrong numbers in some order, instead of on some GPU.
//
// Shared memory has a shadow that knows who wrote and read each word, and when: what two threads
// touch without a barrier between them is a fault in whatever order it happened, and so is reading
// what nobody wrote, an address out of bounds, and a word that an asynchronous copy is still to
// fill. Copies land as late as they may: when their thread waits for them, or somebody for the
// phase that they belong to. A barrier or a phase that some threads never reach is a fault, too.
//
// A fault ends the block, is printed, kept for the test that looks for it (TakeFault), and fails
// the launch.

#ifndef TANDEM_KERNELS_CUDA_EMULATED_BLOCK_H_
#define TANDEM_KERNELS_CUDA_EMULATED_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <source_location>
#include <string>
#include <vector>

namespace tandem::emulated {

// The running thread's, as CUDA has them; only x is used.
struct Index {
  unsigned x = 0;
};

// Where threads wait for each other, or for copies, or arrive at a phase: a line of a kernel.
struct Site {
  std::string file;  // its name without folders
  unsigned line;
  friend auto operator<=>(const Site&, const Site&) = default;
};

// ---- for tests; any thread, while nothing runs ----

// All orders from now on are drawn from it.
void SetSeed(uint64_t seed);
// The first fault since the last call; empty if there was none.
std::string TakeFault();
// The sites that threads have reached since the last call; those where they waited for the launch
// before are apart.
std::set<Site> TakeSites();
std::set<Site> TakeLaunchWaits();
// Nobody waits at `site` any more; the default: everybody does again.
void LeaveOut(const Site& site = {});
// Products of four warps sum a warp's sixteen in two steps of eight each: a GPU on which they have
// other bits. Not at first.
void SumWarpgroupsByHalves(bool by_halves);
// What GPUs are; at first Hopper's, but for their few processors, as blocks run one after the
// other.
struct Gpu {
  int major = 9;  // compute capability
  int minor = 0;
  int num_processors = 4;
  size_t max_shared_bytes = 227 * 1024;  // of a block
};
// The backends that are made from now on find such GPUs, and launches run on them.
void SetGpu(const Gpu& gpu);
Gpu TheGpu();
// Whether the device's memory is closed to threads of a launch that have not waited for the launch
// before (early_memory.h): what they touch is a fault then. So it is in a launch's first block, and
// in some of the others. Not at first, as it takes time.
void WatchEarlyThreads(bool watched);

// ---- for kernels: what the running thread does ----

inline constexpr int kWarpThreads = 32;
inline constexpr int kMaxExchangeBytes = 32;

void WaitForLaunchBefore(const std::source_location& at);
void Barrier(const std::source_location& at);
// All threads of the warp.
void WarpBarrier(const std::source_location& at);
// Gives `mine` (at most kMaxExchangeBytes) to all threads of the warp; `all` has every lane's, one
// behind the other. As with CUDA's shuffles, memory is in no order after it.
void ExchangeInWarp(const void* mine, size_t bytes, void* all);

size_t SharedBytes();
// `offset` counts bytes of shared memory.
void ReadShared(size_t offset, void* to, size_t bytes);
void WriteShared(size_t offset, const void* from, size_t bytes);
// Additions need no order among each other, but with whatever else is done to the number.
void AddToShared(size_t offset, uint64_t value);
// The first `there` of so many bytes, and zeros behind them; null: zeros alone.
void CopyAsync(size_t offset, const void* from, size_t bytes, size_t there);
void CommitCopies();
void WaitForCopies(int pending, const std::source_location& at);

// A barrier of phases (mbarrier), named by its place in shared memory: a phase ends once `arrivals`
// threads have arrived and all copies that belong to it have landed. The phases count from 0;
// whoever waits for the end of one knows what those did who had arrived.
void InitPhases(size_t barrier, int arrivals);
void CopyInPhase(size_t offset, const void* from, size_t bytes, size_t barrier);
// What the thread has copied (CopyAsync) and not committed belongs to the running phase.
void MoveCopiesToPhase(size_t barrier);
void ArriveAtPhase(size_t barrier, const std::source_location& at);
// For the end of the running phase if it is an odd one as `odd` says; else the one before has
// ended.
void WaitForPhase(size_t barrier, bool odd, const std::source_location& at);

// What the thread has written so far, and copied and waited for, products may read
// (fence.proxy.async).
void FenceAsyncReads(const std::source_location& at);
// Products of four warps (warpgroup.h).
struct ProductArgs;
void FenceProducts(const std::source_location& at);
void BeginProduct(const ProductArgs& args);
void CommitProducts(const std::source_location& at);
void WaitForProducts(int pending, const std::source_location& at);

// ---- for launches ----

struct BlockRules {
  bool keeps_denormals = false;   // else they run in the kernels' float environment
  bool follows_launches = false;  // for which some thread of each block waits
};

// Runs `num_blocks` blocks, one after the other. False if there was a fault.
bool RunBlocks(const char* name, int64_t num_blocks, int threads, size_t shared_bytes,
               const std::function<void()>& kernel, const BlockRules& rules = {});

}  // namespace tandem::emulated

namespace tandem {

// The running thread's, set by RunBlocks.
extern thread_local emulated::Index threadIdx, blockIdx, blockDim, gridDim;

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_EMULATED_BLOCK_H_
