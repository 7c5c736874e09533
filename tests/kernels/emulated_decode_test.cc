// Decode attention on the tensor cores without a GPU: whichever of its kernels there is work for, a
// warp for a segment, a block or many, a token has the same bits.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cuda/emulated/block.h"
#include "tests/kernels/emulated_sites.h"
#include "tests/kernels/emulated_test.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/paged_case.h"

namespace tandem {
namespace {

constexpr KvType kKvTypes[] = {KvType::kBF16, KvType::kInt8, KvType::kInt8G8, KvType::kFp8};

class EmulatedDecodeTest : public EmulatedTest {
 protected:
  // A GPU of so many processors.
  static std::unique_ptr<TestDevice> DeviceOf(int64_t processors) {
    emulated::SetGpu({.num_processors = static_cast<int>(processors)});
    return MakeDevice("cuda-tensor");
  }

  PagedSequence Sequence(const PagedShape& shape, int64_t num_tokens) {
    PagedSequence sequence{{}, num_tokens};
    sequence.qkv.resize(num_tokens * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim);
    for (float& x : sequence.qkv) x = (static_cast<float>(random_->Unit()) - 0.5f) * 3.5f;
    return sequence;
  }

  // Whether a launch since the last call was of the kernels that spread a segment.
  static bool TakeSpread() {
    bool spread = false;
    for (const emulated::Site& site : emulated::TakeSites()) {
      spread = spread || site.file == "tensor_spread_decode.cu";
    }
    return spread;
  }

  void ExpectTheSameBits(const PagedShape& shape, const std::vector<int64_t>& tokens);
};

// The cpu writes K and V: its tiles are the GPU's.
void EmulatedDecodeTest::ExpectTheSameBits(const PagedShape& shape,
                                           const std::vector<int64_t>& tokens) {
  const int64_t most = *std::max_element(tokens.begin(), tokens.end());
  std::string name = absl::StrFormat("D %d, %d heads, %d of KV (%s), window %d, cap %g, tokens",
                                     shape.head_dim, shape.num_heads, shape.num_kv_heads,
                                     NameOf(*shape.kv_type), shape.window, shape.score_cap);
  for (const int64_t count : tokens) name += absl::StrFormat(" %d", count);
  const int block_tokens = random_->Chance(0.5) ? 16 : 32;
  const uint64_t seed = random_->Next();
  // As many segments as the kernels are chosen by: tables have two columns more than tokens need.
  const int64_t columns = most + 2 * block_tokens;
  const int64_t segments = static_cast<int64_t>(tokens.size()) * shape.num_kv_heads *
                           ((shape.num_heads / shape.num_kv_heads + 15) / 16) *
                           (columns / kAttentionSegmentTokens + 1);
  const auto writer = MakeDevice("cpu-avx2");
  const auto many = DeviceOf(0);
  const auto wide = DeviceOf(segments);
  const auto spread = DeviceOf(4 * segments);
  const auto spread_more = DeviceOf(100 * segments);
  PagedCase paged(many.get(), shape, block_tokens,
                  static_cast<int64_t>(tokens.size()) * (most / block_tokens + 1), seed);
  std::vector<PagedSequence> sequences;
  std::vector<int> ids;
  std::vector<int64_t> before, ones(tokens.size(), 1);
  for (const int64_t count : tokens) sequences.push_back(Sequence(shape, count));
  for (const PagedSequence& sequence : sequences) {
    ids.push_back(paged.Add(&sequence));
    before.push_back(sequence.num_tokens - 1);
  }
  paged.Write(writer.get(), ids, before);
  const PagedCase::Written last = paged.Write(writer.get(), ids, ones);
  emulated::SetSeed(seed);
  TakeSpread();
  const auto expected = paged.Attend(many.get(), last, /*decode=*/true);
  ASSERT_EQ(paged.Attend(wide.get(), last, true), expected) << name << ", a block a segment";
  ASSERT_FALSE(TakeSpread()) << name;
  ASSERT_EQ(paged.Attend(spread.get(), last, true), expected) << name << ", two slices a block";
  ASSERT_TRUE(TakeSpread()) << name;
  ASSERT_EQ(paged.Attend(spread_more.get(), last, true), expected) << name << ", a slice a block";
  ASSERT_TRUE(TakeSpread()) << name;
  ASSERT_EQ(emulated::TakeFault(), "") << name;
}

TEST_F(EmulatedDecodeTest, ATokenHasTheSameBitsHoweverASegmentIsSharedOut) {
  constexpr int kHeadDims[] = {64, 96, 128};
  constexpr int64_t kMostTokens[] = {20, 130, 700};
  for (int i = 0; i < 16; ++i) {
    const int kv_heads = static_cast<int>(random_->Between(1, 2));
    const PagedShape shape{
        .num_heads = kv_heads * static_cast<int>(random_->Between(1, i % 6 == 0 ? 20 : 16)),
        .num_kv_heads = kv_heads,
        .head_dim = kHeadDims[random_->Below(3)],
        .dtype = DType::kBF16,
        .kv_type = kKvTypes[i % 4],
        .window = random_->Chance(0.3) ? random_->Between(1, 200) : 0,
        .score_cap = random_->Chance(0.3) ? 1.5f : 0.0f};
    std::vector<int64_t> tokens(random_->Between(1, 3));
    for (int64_t& count : tokens) count = random_->Between(1, kMostTokens[random_->Below(3)]);
    ASSERT_NO_FATAL_FAILURE(ExpectTheSameBits(shape, tokens));
  }
}

// What is merged, beside a sequence that has but one; a window that begins within a segment.
TEST_F(EmulatedDecodeTest, SegmentsThatAreSpreadAreMergedAsOthersAre) {
  for (int i = 0; i < 4; ++i) {
    const PagedShape shape{.num_heads = static_cast<int>(random_->Between(1, 16)),
                           .num_kv_heads = 1,
                           .head_dim = i == 0 ? 128 : 64,
                           .dtype = DType::kBF16,
                           .kv_type = kKvTypes[i],
                           .window = i == 2 ? random_->Between(900, 1300) : 0};
    const int64_t tokens = random_->Between(1025, i == 3 ? 5000 : 2100);
    ASSERT_NO_FATAL_FAILURE(ExpectTheSameBits(shape, {tokens, random_->Between(1, 64)}));
  }
}

// Leaves out each alone: barriers and waits of a file's kernels, or their waits for the launch
// before.
class EmulatedDecodeSitesTest : public EmulatedDecodeTest {
 protected:
  void ExpectEachIsNeeded(const char* files, int processors, bool launch_waits, size_t least);
};

void EmulatedDecodeSitesTest::ExpectEachIsNeeded(const char* files, int processors,
                                                 bool launch_waits, size_t least) {
  // Six segments, of which three have positions; what is to be merged is the device's, where what
  // is written too early is seen.
  PagedShape shape{.num_heads = 2, .num_kv_heads = 1, .head_dim = 64, .dtype = DType::kBF16};
  const PagedSequence sequence = Sequence(shape, 1101);
  const PagedSequence other = Sequence(shape, 20);
  const auto run = [&] {
    const auto device = DeviceOf(processors);
    std::vector<std::byte> all;
    for (const KvType kv_type : {KvType::kBF16, KvType::kInt8}) {
      shape.kv_type = kv_type;
      PagedCase paged(device.get(), shape, 16, 80, 5);
      paged.Add(&sequence);
      for (int i = 0; i < 2; ++i) paged.Add(&other);
      paged.Write(device.get(), {0, 1, 2}, {1100, 18, 19});
      const auto output = paged.Step({0, 1, 2}, {1, 1, 1}, /*decode=*/true);
      all.insert(all.end(), output.begin(), output.end());
    }
    return all;
  };
  ExpectEachSiteIsNeeded(
      {.files = files, .launch_waits = launch_waits, .least = least, .seed = seed_, .run = run});
}

TEST_F(EmulatedDecodeSitesTest, EachBarrierAndEachWaitIsNeeded) {
  ExpectEachIsNeeded("tensor_spread_", /*processors=*/24, /*launch_waits=*/false, 7);
}
TEST_F(EmulatedDecodeSitesTest, EachWaitForTheLaunchBeforeIsNeeded) {
  ExpectEachIsNeeded("tensor_spread_", /*processors=*/24, /*launch_waits=*/true, 2);
  ExpectEachIsNeeded("tensor_decode", /*processors=*/4, /*launch_waits=*/true, 1);  // A block.
  ExpectEachIsNeeded("tensor_decode", /*processors=*/1, /*launch_waits=*/true, 1);  // A warp.
}

}  // namespace
}  // namespace tandem
