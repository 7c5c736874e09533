// What kernels/cuda/emulated says of kernels that are wrong, and the meaning of its primitives.

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/cuda/simt.h"
#include "runtime/base/random.h"
#include "tests/kernels/kernel_test_support.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr int kThreads = 128;
constexpr int kOrders = 200;

// Faults of `kernel` in one block of kThreads threads; empty if no order has one.
std::string FaultOf(const std::function<void()>& kernel, int orders = kOrders) {
  emulated::TakeFault();
  for (int order = 0; order < orders; ++order) {
    emulated::SetSeed(order);
    const bool ok = emulated::RunBlocks("kernel", 1, kThreads, 4 * 1024, kernel);
    const std::string fault = emulated::TakeFault();
    EXPECT_EQ(ok, fault.empty());
    if (!fault.empty()) return fault;
  }
  return "";
}

SharedPtr<uint32_t> Shared() { return SharedCast<uint32_t>(SharedMemory()); }

TEST(EmulatedBlockTest, ABarrierOrdersWhatThreadsWriteAndRead) {
  std::vector<uint32_t> seen(kThreads);
  EXPECT_EQ(FaultOf([&] {
              Shared()[threadIdx.x] = threadIdx.x;
              __syncthreads();
              seen[threadIdx.x] = Shared()[(threadIdx.x + 1) % kThreads];
            }),
            "");
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(seen[i], static_cast<uint32_t>(i + 1) % kThreads);
}

TEST(EmulatedBlockTest, AMissingBarrierIsAFaultInEveryOrder) {
  EXPECT_THAT(FaultOf(
                  [] {
                    Shared()[threadIdx.x] = threadIdx.x;
                    static_cast<void>(uint32_t{Shared()[(threadIdx.x + 1) % kThreads]});
                  },
                  1),
              HasSubstr("byte"));
  // A reader that nobody waits for, whose word is written anew.
  EXPECT_THAT(FaultOf([] {
                Shared()[threadIdx.x] = threadIdx.x;
                __syncthreads();
                static_cast<void>(uint32_t{Shared()[(threadIdx.x + 1) % kThreads]});
                Shared()[threadIdx.x] = 0;
              }),
              HasSubstr("another thread"));
  EXPECT_THAT(FaultOf([] { Shared()[0] = threadIdx.x; }), HasSubstr("writes what another"));
}

TEST(EmulatedBlockTest, AWarpsBarrierOrdersItsOwnThreadsAlone) {
  const auto neighbour = [](int of) {
    return [of] {
      Shared()[threadIdx.x] = threadIdx.x;
      __syncwarp();
      static_cast<void>(uint32_t{Shared()[(threadIdx.x + of) % kThreads]});
    };
  };
  EXPECT_EQ(FaultOf([] {
              Shared()[threadIdx.x] = threadIdx.x;
              __syncwarp();
              static_cast<void>(uint32_t{Shared()[threadIdx.x ^ 1]});
            }),
            "");
  EXPECT_NE(FaultOf(neighbour(32)), "");
}

// Both use the memory of the host's thread.
TEST(EmulatedBlockTest, ABlockHasNothingOfTheOneBefore) {
  static constexpr uint32_t kGlobal[4] = {};
  const auto run = [](const std::function<void()>& first, const std::function<void()>& second) {
    emulated::RunBlocks("kernel", 2, kThreads, 4 * 1024,
                        [&] { blockIdx.x == 0 ? first() : second(); });
    return emulated::TakeFault();
  };
  EXPECT_THAT(run([] { Shared()[threadIdx.x] = 1; },
                  [] { static_cast<void>(uint32_t{Shared()[threadIdx.x]}); }),
              HasSubstr("block 1 reads what nobody wrote"));
  EXPECT_EQ(run(
                [] {
                  if (threadIdx.x == 0)
                    emulated::CopyAsync(0, kGlobal, sizeof(kGlobal), sizeof(kGlobal));
                },
                [] { Shared()[threadIdx.x] = 1; }),
            "");
}

TEST(EmulatedBlockTest, WhatNobodyWroteAndWhatIsOutOfBoundsIsAFault) {
  EXPECT_THAT(FaultOf([] { static_cast<void>(uint32_t{Shared()[5]}); }), HasSubstr("nobody wrote"));
  EXPECT_THAT(FaultOf([] {
                if (threadIdx.x == 0) Shared()[1024] = 1;
              }),
              HasSubstr("out of bounds"));
  bool goes_on = false;
  EXPECT_THAT(FaultOf([&] {
                if (threadIdx.x != 0) return;
                static_cast<void>(uint32_t{Shared()[1024]});
                goes_on = true;
              }),
              HasSubstr("out of bounds"));
  EXPECT_FALSE(goes_on);
}

TEST(EmulatedBlockTest, ABarrierThatSomeNeverReachIsAFault) {
  EXPECT_THAT(FaultOf([] {
                if (threadIdx.x != 7) __syncthreads();
              }),
              HasSubstr("never come"));
  EXPECT_THAT(FaultOf([] {
                if (threadIdx.x % 32 != 7) __syncwarp();
              }),
              HasSubstr("never come"));
}

TEST(EmulatedBlockTest, CopiesLandWhenTheyAreWaitedFor) {
  alignas(16) uint32_t from[4 * kThreads];
  for (int i = 0; i < 4 * kThreads; ++i) from[i] = i;
  std::vector<uint32_t> seen(kThreads), zeros(kThreads);
  const auto copy = [&](int first) {
    CopyAsync16(SharedMemory() + (first * kThreads + static_cast<int>(threadIdx.x)) * 16,
                from + 4 * threadIdx.x, first == 0);
    CommitCopies();
  };
  EXPECT_EQ(FaultOf([&] {
              copy(0);
              copy(1);
              WaitForCopies<1>();
              seen[threadIdx.x] = Shared()[4 * threadIdx.x + 1];
              WaitForCopies<0>();
              __syncthreads();
              zeros[threadIdx.x] = Shared()[4 * (kThreads + (threadIdx.x + 1) % kThreads)];
            }),
            "");
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(seen[i], static_cast<uint32_t>(4 * i + 1));
  EXPECT_EQ(zeros, std::vector<uint32_t>(kThreads, 0));
  EXPECT_THAT(FaultOf([&] {
                copy(0);
                copy(0 + 1);
                WaitForCopies<1>();
                static_cast<void>(uint32_t{Shared()[4 * (kThreads + threadIdx.x)]});
              }),
              HasSubstr("a copy is to fill"));
  // A wait is of a thread's own copies.
  EXPECT_NE(FaultOf([&] {
              copy(0);
              WaitForCopies<0>();
              static_cast<void>(uint32_t{Shared()[4 * ((threadIdx.x + 1) % kThreads)]});
            }),
            "");
}

// A warp fills the same bytes twice; the others read them in between.
struct RingCase {
  bool waits_until_full = true;
  bool waits_until_free = true;
  bool warp_meets = true;  // before a lane arrives for it
  int arrivals = 1;        // of a reading warp
};

std::string FaultOfRing(const RingCase& c, std::vector<uint32_t>* seen) {
  alignas(16) static uint32_t from[2][kThreads];
  for (uint32_t i = 0; i < 2 * kThreads; ++i) from[i / kThreads][i % kThreads] = i;
  constexpr int kReaders = kThreads / 32 - 1;  // warps
  seen->assign(2 * kThreads, 0);
  return FaultOf([&] {
    const SharedPtr<uint64_t> full = SharedCast<uint64_t>(SharedMemory());
    const SharedPtr<uint64_t> free = full + 1;
    const SharedPtr<std::byte> data = SharedMemory() + 128;
    if (threadIdx.x == 0) {
      InitPhases(full, WarpCopyArrivals() + 32);
      InitPhases(free, kReaders);
    }
    __syncthreads();
    for (int round = 0; round < 2; ++round) {
      if (threadIdx.x < 32) {
        if (c.waits_until_free) WaitForPhase(free, round == 0);
        CopyByWarp(data, from[round], kThreads * 2, full);
        for (int i = static_cast<int>(threadIdx.x) * 16; i < kThreads * 2; i += 32 * 16) {
          CopyAsync16(data + kThreads * 2 + i,
                      reinterpret_cast<const std::byte*>(from[round]) + kThreads * 2 + i);
        }
        ArriveBehindCopies(full);
        continue;
      }
      if (c.waits_until_full) WaitForPhase(full, round == 1);
      (*seen)[round * kThreads + threadIdx.x] = SharedCast<uint32_t>(data)[threadIdx.x];
      if (c.warp_meets) __syncwarp();
      if (static_cast<int>(threadIdx.x % 32) < c.arrivals) Arrive(free);
    }
  });
}

TEST(EmulatedBlockTest, APhaseEndsWithItsArrivalsAndItsCopies) {
  std::vector<uint32_t> seen;
  EXPECT_EQ(FaultOfRing({}, &seen), "");
  for (uint32_t i = 0; i < 2 * kThreads; ++i) {
    if (i % kThreads >= 32) {
      EXPECT_EQ(seen[i], i);
    }
  }
  EXPECT_THAT(FaultOfRing({.waits_until_full = false}, &seen), HasSubstr("byte"));
  EXPECT_THAT(FaultOfRing({.waits_until_free = false}, &seen), HasSubstr("byte"));
  EXPECT_THAT(FaultOfRing({.arrivals = 0}, &seen), HasSubstr("never come"));
  // A lane that arrives for others has to know what they did.
  EXPECT_THAT(FaultOfRing({.warp_meets = false}, &seen), HasSubstr("another thread"));
}

TEST(EmulatedBlockTest, AWordOfABarrierIsNobodysBusiness) {
  const auto touch = [](int word) {
    return [word] {
      if (threadIdx.x == 0) {
        InitPhases(SharedCast<uint64_t>(SharedMemory()) + 1, 1);
        Shared()[word] = 1;
      }
    };
  };
  EXPECT_EQ(FaultOf(touch(1)), "");
  EXPECT_NE(FaultOf(touch(2)), "");
  EXPECT_NE(FaultOf(touch(3)), "");
  EXPECT_THAT(FaultOf([] { Arrive(SharedCast<uint64_t>(SharedMemory())); }),
              HasSubstr("a barrier that is none"));
}

// ldmatrix of the PTX manual: four matrices of 8 by 8 numbers of 16 bits.
TEST(EmulatedBlockTest, MatricesAreLoadedAsFragments) {
  std::vector<uint32_t> loaded(4 * 32);
  EXPECT_EQ(FaultOf([&] {
              if (threadIdx.x < 32) {
                for (int i = 0; i < 4; ++i) {
                  Shared()[threadIdx.x * 4 + i] = static_cast<uint32_t>(threadIdx.x * 4 + i);
                }
              }
              __syncthreads();
              uint32_t words[4];
              LoadMatrices(words, SharedMemory() + static_cast<int>(threadIdx.x % 32) * 16);
              if (threadIdx.x >= 32) return;
              for (int i = 0; i < 4; ++i) loaded[i * 32 + threadIdx.x] = words[i];
            }),
            "");
  // Lane l has of each matrix word l % 4 of row l / 4, which are as many in a row.
  for (uint32_t i = 0; i < 4 * 32; ++i) EXPECT_EQ(loaded[i], i);
}

TEST(EmulatedBlockTest, ShufflesExchangeWhatLanesHave) {
  std::vector<uint32_t> same(kThreads), exchanged(kThreads), down(kThreads), up(kThreads);
  EXPECT_EQ(FaultOf([&] {
              const uint32_t mine = 100 + threadIdx.x;
              same[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, mine, 3);
              exchanged[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, mine, 8);
              down[threadIdx.x] = __shfl_down_sync(0xFFFFFFFFu, mine, 16);
              up[threadIdx.x] = __shfl_up_sync(0xFFFFFFFFu, mine, 4);
            }),
            "");
  for (uint32_t i = 0; i < kThreads; ++i) {
    EXPECT_EQ(same[i], 100 + i / 32 * 32 + 3);
    EXPECT_EQ(exchanged[i], 100 + (i ^ 8));
    EXPECT_EQ(down[i], 100 + (i % 32 < 16 ? i + 16 : i));
    EXPECT_EQ(up[i], 100 + (i % 32 < 4 ? i : i - 4));
  }
}

TEST(EmulatedBlockTest, AdditionsNeedNoOrderAmongEachOther) {
  constexpr uint64_t kLarge = 0xFFFFFFFFu;
  const auto sums = [] { return SharedCast<uint64_t>(SharedMemory()); };
  std::vector<uint64_t> seen(kThreads);
  EXPECT_EQ(FaultOf([&] {
              sums()[threadIdx.x] = threadIdx.x;
              __syncthreads();
              AddShared(sums() + threadIdx.x % 2, kLarge);
              AddShared(sums() + (threadIdx.x + 1) % 2, kLarge);
              __syncthreads();
              seen[threadIdx.x] = sums()[threadIdx.x];
            }),
            "");
  for (uint64_t i = 0; i < kThreads; ++i) EXPECT_EQ(seen[i], i + (i < 2 ? kThreads * kLarge : 0));
}

TEST(EmulatedBlockTest, AnAdditionIsInOrderWithWhateverElseIsDone) {
  const auto sums = [] { return SharedCast<uint64_t>(SharedMemory()); };
  const auto read = [=](unsigned at) { static_cast<void>(uint64_t{sums()[at]}); };
  const auto begin = [=] {
    if (threadIdx.x == 0) sums()[0] = 0;
    __syncthreads();
  };
  EXPECT_THAT(FaultOf([=] { AddShared(sums(), 1); }, 1), HasSubstr("adds to what nobody wrote"));
  EXPECT_THAT(FaultOf([=] { AddShared(sums() + 512, 1); }, 1), HasSubstr("out of bounds"));
  EXPECT_THAT(FaultOf([=] {
                if (threadIdx.x == 0) sums()[0] = 0;
                AddShared(sums(), 1);
              }),
              HasSubstr("adds to"));
  for (uint64_t order = 0; order < 20; ++order) {  // Also where the last who added reads.
    emulated::SetSeed(order);
    EXPECT_FALSE(emulated::RunBlocks("kernel", 1, kThreads, 64, [=] {
      begin();
      if (threadIdx.x % 64 == 0) AddShared(sums(), 1);
      if (threadIdx.x == 64) read(0);
    }));
  }
  EXPECT_THAT(FaultOf([=] {
                begin();
                if (threadIdx.x == 1) read(0);
                if (threadIdx.x == 2) AddShared(sums(), 1);
              }),
              HasSubstr("another thread"));
  EXPECT_THAT(FaultOf([=] {
                begin();
                if (threadIdx.x < 2) AddShared(sums(), 1);
                __syncwarp();
                if (threadIdx.x == 2) sums()[0] = 1;
                if (threadIdx.x == 33) AddShared(sums(), 1);
              }),
              HasSubstr("another thread writes"));
  EXPECT_EQ(FaultOf([=] {
              begin();
              if (threadIdx.x < 2) AddShared(sums(), 1);
              __syncwarp();
              if (threadIdx.x == 2) read(0);
            }),
            "");
}

TEST(EmulatedBlockTest, DenormalsAreZeroUnlessTheyAreKept) {
  for (const bool kept : {false, true}) {
    volatile float tiny = 1e-40f;
    float sum = 1;
    EXPECT_TRUE(emulated::RunBlocks("kernel", 1, 32, 0,
                                    [&] {
                                      if (threadIdx.x == 0) sum = tiny + tiny;
                                    },
                                    {.keeps_denormals = kept}));
    EXPECT_EQ(sum > 0, kept);
  }
}

// The fragments are those of the PTX manual (mma.m16n8k16 with .bf16); small whole numbers are
// summed exactly.
TEST(EmulatedBlockTest, ProductsOfBf16AreThoseOfMatrices) {
  Random random(5);
  float a[16][16], b[16][8], d[16][8] = {};
  for (auto& row : a) {
    for (float& x : row) x = static_cast<float>(random.Between(-8, 8));
  }
  for (auto& row : b) {
    for (float& x : row) x = static_cast<float>(random.Between(-8, 8));
  }
  EXPECT_EQ(FaultOf([&] {
              const int group = static_cast<int>(threadIdx.x) % 32 / 4;
              const int in_group = static_cast<int>(threadIdx.x) % 4;
              uint32_t of_a[4], of_b[2];
              for (int i = 0; i < 4; ++i) {
                const int row = i % 2 == 0 ? group : group + 8;
                const int column = in_group * 2 + i / 2 * 8;
                of_a[i] = PackBf16(a[row][column], a[row][column + 1]);
              }
              for (int i = 0; i < 2; ++i) {
                const int row = in_group * 2 + i * 8;
                of_b[i] = PackBf16(b[row][group], b[row + 1][group]);
              }
              float sums[4] = {1, 2, 3, 4};
              MmaBf16(sums, of_a, of_b);
              if (threadIdx.x >= 32) return;
              for (int i = 0; i < 4; ++i) {
                d[i < 2 ? group : group + 8][in_group * 2 + i % 2] =
                    sums[i] - static_cast<float>(i + 1);
              }
            }),
            "");
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float expected = 0;
      for (int k = 0; k < 16; ++k) expected += a[row][k] * b[k][column];
      EXPECT_EQ(d[row][column], expected) << row << ", " << column;
    }
  }
}

// The fragments are those of the PTX manual (mma.m16n8k32 with .s8).
TEST(EmulatedBlockTest, ProductsOfEightBitsAreThoseOfMatrices) {
  Random random(3);
  int8_t a[16][32], b[32][8];
  for (auto& row : a) {
    for (int8_t& x : row) x = static_cast<int8_t>(random.Below(256));
  }
  for (auto& row : b) {
    for (int8_t& x : row) x = static_cast<int8_t>(random.Below(256));
  }
  int32_t d[16][8] = {};
  EXPECT_EQ(FaultOf([&] {
              const int group = static_cast<int>(threadIdx.x) % 32 / 4;
              const int in_group = static_cast<int>(threadIdx.x) % 4;
              uint32_t of_a[4] = {}, of_b[2] = {};
              for (int i = 0; i < 16; ++i) {
                const int row = i % 8 < 4 ? group : group + 8;
                const int column = in_group * 4 + i % 4 + (i < 8 ? 0 : 16);
                of_a[i / 4] |= uint32_t{static_cast<uint8_t>(a[row][column])} << (8 * (i % 4));
              }
              for (int i = 0; i < 8; ++i) {
                const int row = in_group * 4 + i % 4 + (i < 4 ? 0 : 16);
                of_b[i / 4] |= uint32_t{static_cast<uint8_t>(b[row][group])} << (8 * (i % 4));
              }
              int32_t sums[4] = {1, 2, 3, 4};
              MmaInt8(sums, of_a, of_b);
              if (threadIdx.x >= 32) return;
              for (int i = 0; i < 4; ++i) {
                d[i < 2 ? group : group + 8][in_group * 2 + i % 2] = sums[i] - (i + 1);
              }
            }),
            "");
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      int32_t expected = 0;
      for (int k = 0; k < 32; ++k) expected += a[row][k] * b[k][column];
      EXPECT_EQ(d[row][column], expected) << row << ", " << column;
    }
  }
}

TEST(EmulatedBlockTest, AFaultFailsTheLaunchAndAllThatFollows) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  struct Args {};
  const auto wrong = +[](Args) {
    BeginLaunch();
    static_cast<void>(uint32_t{Shared()[0]});
  };
  const auto right = +[](Args) { BeginLaunch(); };
  EXPECT_EQ(Launch(wrong, {.blocks = 1, .threads = 32, .shared_bytes = 64}, stream, Args{}),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_EQ(Launch(right, {.blocks = 1, .threads = 32}, stream, Args{}), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_NE(emulated::TakeFault(), "");
}

// ---- before the launch before has ended ----

// Memory of the device: a page that the host has uploaded, and one that it has not.
struct EarlyArgs {
  uint32_t* uploaded;
  uint32_t* other;
};

// The fault of one block of kThreads threads; empty if it went well.
std::string FaultOfLaunch(void (*kernel)(EarlyArgs), bool watched = true) {
  constexpr size_t kBytes = 4096;
  const std::vector<uint32_t> numbers(kBytes / sizeof(uint32_t), 7);
  EarlyArgs args = {};
  cudaStream_t stream = nullptr;  // What has failed stays failed.
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&args.uploaded), kBytes), cudaSuccess);
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&args.other), kBytes), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(args.uploaded, numbers.data(), kBytes, cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  emulated::TakeFault();
  emulated::WatchEarlyThreads(watched);
  const LaunchShape shape = {.blocks = 1, .threads = kThreads, .shared_bytes = 4 * 1024};
  EXPECT_EQ(Launch(kernel, shape, stream, args), cudaSuccess);
  const cudaError_t error = cudaStreamSynchronize(stream);
  emulated::WatchEarlyThreads(false);
  const std::string fault = emulated::TakeFault();
  EXPECT_EQ(error == cudaSuccess, fault.empty());
  EXPECT_EQ(cudaFree(args.uploaded), cudaSuccess);
  EXPECT_EQ(cudaFree(args.other), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  return fault;
}

uint32_t Read(const uint32_t* from) { return *const_cast<const volatile uint32_t*>(from); }

TEST(EmulatedLaunchTest, BeforeItHasWaitedAThreadReadsWhatTheHostUploadedAndNothingElse) {
  EXPECT_EQ(FaultOfLaunch([](EarlyArgs args) {
              const uint32_t early = Read(args.uploaded + threadIdx.x);
              WaitForLaunchBefore();
              args.other[threadIdx.x] = early + Read(args.other + threadIdx.x);
              args.uploaded[threadIdx.x] = 0;
            }),
            "");
  constexpr char kFault[] = "has not waited";
  const auto reads = [](EarlyArgs args) {
    Read(args.other + threadIdx.x);
    WaitForLaunchBefore();
  };
  EXPECT_THAT(FaultOfLaunch(reads), HasSubstr(kFault));
  EXPECT_EQ(FaultOfLaunch(reads, /*watched=*/false), "");
  EXPECT_THAT(FaultOfLaunch([](EarlyArgs args) {
                if (threadIdx.x == 5) args.other[0] = 1;
                WaitForLaunchBefore();
              }),
              HasSubstr(kFault));
  EXPECT_THAT(FaultOfLaunch([](EarlyArgs args) {
                if (threadIdx.x == 5) args.uploaded[0] = 1;
                WaitForLaunchBefore();
              }),
              HasSubstr(kFault));
}

TEST(EmulatedLaunchTest, EachThreadWaitsForItself) {
  constexpr char kFault[] = "has not waited";
  // However late, and whoever else has.
  EXPECT_THAT(FaultOfLaunch([](EarlyArgs args) {
                if (threadIdx.x != 77) WaitForLaunchBefore();
                __syncthreads();
                if (threadIdx.x == 77) args.other[0] = 1;
              }),
              HasSubstr(kFault));
  EXPECT_EQ(FaultOfLaunch([](EarlyArgs args) {
              if (threadIdx.x != 77) WaitForLaunchBefore();
              __syncthreads();
              if (threadIdx.x != 77) args.other[threadIdx.x] = Read(args.uploaded);
            }),
            "");
  EXPECT_THAT(FaultOfLaunch([](EarlyArgs args) { Read(args.uploaded); }),
              HasSubstr("nobody has waited"));
  EXPECT_THAT(FaultOfLaunch([](EarlyArgs) {}, /*watched=*/false), HasSubstr("nobody has waited"));
}

void CopyEarly(const uint32_t* from, bool valid) {
  CopyAsync16(SharedMemory() + static_cast<int>(threadIdx.x) * 16, from + threadIdx.x / 4 * 4,
              valid);
  CommitCopies();
  WaitForLaunchBefore();
  WaitForCopies<0>();
}

void CopyEarlyByWarp(const uint32_t* from) {
  const SharedPtr<uint64_t> full = SharedCast<uint64_t>(SharedMemory());
  if (threadIdx.x == 0) InitPhases(full, WarpCopyArrivals());
  __syncthreads();
  if (threadIdx.x < 32) CopyByWarp(SharedMemory() + 128, from, 1024, full);
  WaitForLaunchBefore();
  WaitForPhase(full, false);
}

// They land later, but may do so at once.
TEST(EmulatedLaunchTest, CopiesReadWhenTheyBegin) {
  EXPECT_EQ(FaultOfLaunch([](EarlyArgs args) { CopyEarly(args.uploaded, true); }), "");
  EXPECT_EQ(FaultOfLaunch([](EarlyArgs args) { CopyEarly(args.other, false); }), "");
  EXPECT_THAT(FaultOfLaunch([](EarlyArgs args) { CopyEarly(args.other, true); }),
              HasSubstr("has not waited"));
  EXPECT_EQ(FaultOfLaunch([](EarlyArgs args) { CopyEarlyByWarp(args.uploaded); }), "");
  EXPECT_THAT(FaultOfLaunch([](EarlyArgs args) { CopyEarlyByWarp(args.other); }),
              HasSubstr("has not waited"));
}

}  // namespace
}  // namespace tandem
