// Attention against the reference, and its bits over chunks, batches, blocks, threads and phases.

#include "kernels/api/attention.h"

#include "kernels/api/e4m3.h"
#include "runtime/base/crc32c.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/paged_case.h"
#include "tests/support/sample_only.h"

namespace tandem {
namespace {

using Windows = std::vector<int64_t>;
const std::vector<int> kThreads = kSampleOnly ? std::vector<int>{3} : std::vector<int>{1, 2, 3};

// Computed in, and what KV is kept in.
struct Types {
  DType compute;
  KvType kv;
};
std::ostream& operator<<(std::ostream& out, const Types& types) {
  return out << NameOf(types.compute) << " with KV of type " << NameOf(types.kv);
}

class AttentionTest : public DeviceTest {
 protected:
  // All that the device has, or each KV type once.
  const std::vector<Types>& AllTypes() {
    if (!types_.empty()) return types_;
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const KvType kv : kAllKvTypes) {
        const bool is_of_bf16 = kv == KvType::kBF16 || kv == KvType::kInt8;
        if (kSampleOnly && is_of_bf16 != (compute == DType::kBF16)) continue;
        const auto format = device_->backend().GetKvTileFormat({16, 64, kv}, compute);
        if (format.ok()) types_.push_back({compute, kv});
      }
    }
    return types_;
  }

  // Over 56 cases every head size comes four times, every group size seven times.
  PagedShape AnyShape(int i) {
    constexpr int kHeadDims[] = {2, 6, 8, 16, 18, 32, 48, 64, 80, 96, 100, 112, 128, 256};
    constexpr int kGroups[] = {1, 2, 3, 4, 7, 8, 16, 32};
    const int group = kGroups[i % std::size(kGroups)];
    const int kv_heads = group >= 16 ? 1 : static_cast<int>(Between(1, 3));
    const Types types = AllTypes()[random_->Below(AllTypes().size())];
    return PagedShape{.num_heads = kv_heads * group,
                      .num_kv_heads = kv_heads,
                      .head_dim = kHeadDims[i % std::size(kHeadDims)],
                      .dtype = types.compute,
                      .kv_type = types.kv,
                      .rotary = random_->Chance(0.7),
                      .window = random_->Chance(0.4) ? Between(1, 150) : 0,
                      .head_norms = random_->Chance(0.4),
                      .score_cap = random_->Chance(0.4) ? 1.5f : 0.0f};
  }

  static PagedShape ShapeOf(const Types& types, int num_heads, int num_kv_heads, int head_dim) {
    return {.num_heads = num_heads,
            .num_kv_heads = num_kv_heads,
            .head_dim = head_dim,
            .dtype = types.compute,
            .kv_type = types.kv};
  }

  PagedSequence Sequence(const PagedShape& shape, int64_t num_tokens) {
    const int64_t row = int64_t{shape.num_heads + 2 * shape.num_kv_heads} * shape.head_dim;
    return {Floats(num_tokens * row), num_tokens};
  }

  static testing::AssertionResult Close(const PagedShape& shape,
                                        const std::vector<std::byte>& actual,
                                        const std::vector<std::byte>& expected) {
    return shape.dtype == DType::kF32 ? Near(shape.dtype, actual, expected, 3e-6f, 1e-5f)
                                      : Near(shape.dtype, actual, expected, 6e-3f, 8e-3f);
  }

 private:
  std::vector<Types> types_;
};

TEST_P(AttentionTest, MatchesReferenceOnRaggedBatches) {
  for (int i = 0; i < (kSampleOnly ? 28 : 56); ++i) {
    const PagedShape shape = AnyShape(i);
    // The reference takes its time: fewer tokens for larger rows, but always more than a tile.
    const int64_t max_tokens =
        std::clamp<int64_t>(100'000 / (shape.num_heads * shape.head_dim), 70, 140);
    const int block_tokens = random_->Chance(0.5) ? 16 : 32;
    const uint64_t seed = random_->Next();
    PagedCase expected(reference_.get(), shape, block_tokens, 64, seed);
    PagedCase actual(device_.get(), shape, block_tokens, 64, seed + 1);
    std::vector<PagedSequence> sequences;
    std::vector<int> ids;
    std::vector<int64_t> first, second;
    const int count = static_cast<int>(Between(0, 4));
    for (int s = 0; s < count; ++s) sequences.push_back(Sequence(shape, Between(3, max_tokens)));
    for (const PagedSequence& sequence : sequences) {
      expected.Add(&sequence);
      ids.push_back(actual.Add(&sequence));
      first.push_back(Between(0, sequence.num_tokens - 2));
      second.push_back(sequence.num_tokens - 1 - first.back());
    }
    const std::vector<int64_t> one(count, 1);
    ASSERT_TRUE(Close(shape, actual.Step(ids, first, false), expected.Step(ids, first, false)));
    EXPECT_EQ(actual.last_query(), expected.last_query());  // rotated and rounded alike
    ASSERT_TRUE(Close(shape, actual.Step(ids, second, false), expected.Step(ids, second, false)));
    ASSERT_TRUE(Close(shape, actual.Step(ids, one, true), expected.Step(ids, one, true)))
        << "decode, D " << shape.head_dim << ", H " << shape.num_heads;
  }
}

TEST_P(AttentionTest, MatchesReferenceOverSegmentBorders) {
  for (const Types& types : AllTypes()) {
    const PagedShape shape = ShapeOf(types, 2, 1, 16);
    const PagedSequence sequence = Sequence(shape, 2051);
    PagedCase expected(reference_.get(), shape, 16, 130, 1);
    PagedCase actual(device_.get(), shape, 16, 130, 2);
    ASSERT_TRUE(Close(shape, actual.Prefill(&sequence, 2051), expected.Prefill(&sequence, 2051)));
  }
}

TEST_P(AttentionTest, ChunksBlocksAndThreadsDoNotChangeABit) {
  for (const Types& types : AllTypes()) {
    const PagedShape shape = ShapeOf(types, 3, 1, 64);
    const PagedSequence sequence = Sequence(shape, 1101);
    std::vector<std::byte> whole;
    for (const int threads : kThreads) {
      const auto backend = MakeDevice(GetParam(), threads);
      for (const auto& [block_tokens, chunk] :
           std::vector<std::pair<int, int64_t>>{{16, 1101}, {32, 16}, {16, 64}, {32, 100}}) {
        PagedCase paged(backend.get(), shape, block_tokens, 100, chunk + threads);
        const auto output = paged.Prefill(&sequence, chunk);
        if (whole.empty()) whole = output;
        ASSERT_EQ(output, whole) << "chunk " << chunk << ", blocks of " << block_tokens << ", "
                                 << threads << " threads, " << types;
      }
    }
  }
}

// Lengths and windows on both sides of every border: sub-tiles of 16, tiles of 64, segments of
// 1,024.
TEST_P(AttentionTest, WindowsMatchReferenceAroundEveryBorder) {
  for (const Types& types : AllTypes()) {
    for (const int64_t window :
         kSampleOnly ? Windows{17, 64} : Windows{1, 2, 16, 17, 63, 64, 127}) {
      PagedShape shape = ShapeOf(types, 3, 1, 8);
      shape.window = window;
      const PagedSequence sequence = Sequence(shape, 200);
      PagedCase expected(reference_.get(), shape, 16, 20, 1);
      PagedCase actual(device_.get(), shape, 32, 20, 2);
      ASSERT_TRUE(Close(shape, actual.Prefill(&sequence, 200), expected.Prefill(&sequence, 200)))
          << "window " << window << ", " << types;
    }
    for (const int64_t window : kSampleOnly ? Windows{1025} : Windows{900, 1024, 1025, 2050}) {
      PagedShape shape = ShapeOf(types, 2, 1, 4);
      shape.window = window;
      const PagedSequence sequence = Sequence(shape, 2120);
      PagedCase expected(reference_.get(), shape, 16, 134, 1);
      PagedCase actual(device_.get(), shape, 16, 134, 2);
      const std::vector<int> expected_id = {expected.Add(&sequence)};
      const std::vector<int> actual_id = {actual.Add(&sequence)};
      for (const int64_t count : {900, 128, 940, 140, 12}) {
        const auto output = actual.Step(actual_id, {count}, /*decode=*/false);
        ASSERT_TRUE(Close(shape, output, expected.Step(expected_id, {count}, /*decode=*/false)))
            << "window " << window << ", " << types;
      }
    }
  }
}

TEST_P(AttentionTest, AWindowOfEverythingIsNoWindow) {
  for (const Types& types : AllTypes()) {
    PagedShape shape = ShapeOf(types, 2, 1, 16);
    const PagedSequence sequence = Sequence(shape, 1100);
    PagedCase plain(device_.get(), shape, 16, 70, 1);
    const auto all = plain.Prefill(&sequence, 1100);
    for (const int64_t window : {int64_t{1100}, int64_t{1} << 31}) {
      shape.window = window;
      PagedCase paged(device_.get(), shape, 16, 70, 2);
      EXPECT_EQ(paged.Prefill(&sequence, 100), all) << window;
    }
    shape.window = 1099;
    PagedCase paged(device_.get(), shape, 16, 70, 3);
    EXPECT_NE(paged.Prefill(&sequence, 100), all);
  }
}

// Rows of one call begin in different tiles and segments than each of them alone; what the window
// has left is neither read nor found in the block table.
TEST_P(AttentionTest, WindowsGiveTheSameBitsInAnyChunksThreadsBlocksAndPhases) {
  for (const Types& types : AllTypes()) {
    for (const int64_t window : kSampleOnly ? Windows{5, 200} : Windows{5, 30, 200, 1030}) {
      PagedShape shape = ShapeOf(types, 4, 2, 16);
      shape.window = window;
      shape.head_norms = true;
      shape.score_cap = 2.0f;
      const PagedSequence sequence = Sequence(shape, 2200);
      PagedCase at_once(device_.get(), shape, 16, 140, 1);
      const auto whole = at_once.Prefill(&sequence, 2200);
      const size_t row_bytes = at_once.row_elements() * SizeOf(types.compute);
      for (const int threads : {1, 3}) {
        const auto backend = MakeDevice(GetParam(), threads);
        for (const int64_t chunk : {16, 64, 100, 1500}) {
          PagedCase paged(backend.get(), shape, chunk == 64 ? 32 : 16, 140, chunk + threads);
          const int id = paged.Add(&sequence);
          int64_t done = 0;
          const auto step = [&](int64_t count, bool decode) {
            const auto rows = paged.Step({id}, {count}, decode);
            EXPECT_EQ(0, std::memcmp(rows.data(), whole.data() + done * row_bytes, rows.size()))
                << "position " << done << ", chunk " << chunk << ", window " << window << ", "
                << threads << " threads, " << types;
            done += count;
            paged.ForgetWhatTheWindowLeft(id);
            return !HasFailure();
          };
          while (done < 2100) ASSERT_TRUE(step(std::min(chunk, 2100 - done), false));
          while (done < 2200) ASSERT_TRUE(step(1, true));
        }
      }
    }
  }
}

// A query of one number and keys of one: the keys are the scores, and weights their capped
// exponentials.
TEST_P(AttentionTest, CappedScoresAreThoseOfTheDefinition) {
  const PagedShape shape{.num_heads = 1,
                         .num_kv_heads = 1,
                         .head_dim = 2,
                         .dtype = DType::kF32,
                         .rotary = false,
                         .score_cap = 5.0f};
  const double root = std::sqrt(2.0);
  constexpr double kScores[] = {-40, 3, 6, 1e6, 0.01};
  PagedSequence sequence{{}, std::size(kScores)};
  for (const double score : kScores) {
    const float key = static_cast<float>(score * root), value = static_cast<float>(score > 5);
    sequence.qkv.insert(sequence.qkv.end(), {1.0f, 0.0f, key, 0.0f, value, 1.0f});
  }
  PagedCase paged(device_.get(), shape, 16, 1, 1);
  const auto output = paged.Prefill(&sequence, sequence.num_tokens);
  double above = 0, all = 0;
  for (const double score : kScores) {
    const double weight = std::exp(5 * std::tanh(score / 5));
    all += weight;
    if (score > 5) above += weight;
  }
  float last[2];
  std::memcpy(last, output.data() + output.size() - sizeof(last), sizeof(last));
  EXPECT_NEAR(last[0], above / all, 1e-6);
  EXPECT_NEAR(last[1], 1.0, 1e-6);
}

// The norm is RmsNorm's of each head, then rotated: nothing is left for the value.
TEST_P(AttentionTest, NormsOfHeadsAreThoseOfRowsToTheBit) {
  for (const int head_dim : {2, 16, 18, 80, 128, 256}) {
    const PagedShape shape{.num_heads = 3,
                           .num_kv_heads = 1,
                           .head_dim = head_dim,
                           .dtype = DType::kF32,
                           .rotary = false,
                           .head_norms = true};
    const PagedSequence sequence = Sequence(shape, 5);
    PagedCase paged(device_.get(), shape, 16, 1, 1);
    paged.Prefill(&sequence, 5);
    std::vector<float> weight, expected(15 * head_dim), queries;
    for (int d = 0; d < head_dim; ++d) weight.push_back(0.5f + 0.01f * static_cast<float>(d % 90));
    for (int t = 0; t < 5; ++t) {
      const auto row = sequence.qkv.begin() + t * 5 * head_dim;
      queries.insert(queries.end(), row, row + 3 * head_dim);
    }
    ASSERT_OK(device_->RmsNorm({.input = queries.data(),
                                .weight = weight.data(),
                                .output = expected.data(),
                                .num_rows = 15,
                                .features = head_dim,
                                .epsilon = 1e-5f,
                                .output_dtype = DType::kF32}));
    ASSERT_EQ(paged.last_query().size(), expected.size() * sizeof(float));
    EXPECT_EQ(0, std::memcmp(paged.last_query().data(), expected.data(), paged.last_query().size()))
        << head_dim;
  }
}

// All numbers in V; in K those that leave softmax more than one token.
TEST_P(AttentionTest, EightBitFloatsAreTheNumbersThatTheyStandFor) {
  for (const Types& types : AllTypes()) {
    if (types.kv != KvType::kFp8) continue;
    for (const int head_dim : {18, 64, 256}) {
      PagedShape shape = ShapeOf(types, 6, 2, head_dim);
      shape.rotary = false;
      PagedSequence sequence = Sequence(shape, 131);
      for (size_t i = 0; i < sequence.qkv.size(); ++i) {
        const size_t head = i / head_dim % 10;
        const auto number = static_cast<uint8_t>(random_->Below(head < 8 ? 0x3C : 0x7F));
        const auto sign = static_cast<uint8_t>(random_->Below(2) << 7);
        if (head >= 6) sequence.qkv[i] = ToFloat(E4m3{static_cast<uint8_t>(number | sign)});
      }
      PagedCase narrow(device_.get(), shape, 16, 16, 1);
      const auto output = narrow.Prefill(&sequence, 131);
      shape.kv_type = KvTypeOf(types.compute);
      PagedCase wide(device_.get(), shape, 16, 16, 2);
      EXPECT_EQ(output, wide.Prefill(&sequence, 131)) << types << ", D " << head_dim;
    }
  }
}

TEST_P(AttentionTest, EightBitFloatsHideNoInfinity) {
  for (const Types& types : AllTypes()) {
    if (types.kv != KvType::kFp8) continue;
    const PagedShape shape = ShapeOf(types, 4, 1, 64);
    PagedSequence sequence = Sequence(shape, 21);
    PagedCase finite(device_.get(), shape, 16, 4, 1);
    const auto expected = finite.Prefill(&sequence, 21);
    constexpr int64_t kRow = 6 * 64, kKey = 4 * 64;
    sequence.qkv[20 * kRow + kKey] = -std::numeric_limits<float>::infinity();
    PagedCase infinite(device_.get(), shape, 16, 4, 2);
    const auto output = infinite.Prefill(&sequence, 21);
    const size_t row_bytes = output.size() / 21;
    EXPECT_EQ(0, std::memcmp(output.data(), expected.data(), 20 * row_bytes)) << types;
    for (int64_t i = 20 * finite.row_elements(); i < 21 * finite.row_elements(); ++i) {
      EXPECT_TRUE(std::isnan(At(types.compute, output, i))) << types;
    }
  }
}

// Segments of 1,024 positions: from the fourth on, merged sums are merged again.
TEST_P(AttentionTest, FourSegmentsMergeToTheSameBitsInAnyChunksAndPhases) {
  constexpr int64_t kTokens = 3100, kWhole = 3056;
  for (const Types& types : AllTypes()) {
    const PagedShape shape = ShapeOf(types, 2, 1, 16);
    const PagedSequence sequence = Sequence(shape, kTokens);
    PagedCase at_once(device_.get(), shape, 16, 200, 8);
    const auto whole = at_once.Prefill(&sequence, kTokens);
    const auto rest_begin = static_cast<std::ptrdiff_t>(
        kWhole * at_once.row_elements() * static_cast<int64_t>(SizeOf(types.compute)));
    const std::vector<std::byte> rest(whole.begin() + rest_begin, whole.end());
    for (const int threads : kThreads) {
      const auto backend = MakeDevice(GetParam(), threads);
      PagedCase chunked(backend.get(), shape, 32, 100, 9);
      ASSERT_EQ(chunked.Prefill(&sequence, 1000), whole) << threads << " threads";
      // Then in steps with few rows, which threads share segment by segment.
      for (const int64_t step : {11, 1}) {
        PagedCase paged(backend.get(), shape, 16, 200, 10);
        const int id = paged.Add(&sequence);
        paged.Step({id}, {kWhole}, /*decode=*/false);
        std::vector<std::byte> output;
        for (int64_t t = kWhole; t < kTokens; t += step) {
          const auto rows = paged.Step({id}, {step}, /*decode=*/step == 1);
          output.insert(output.end(), rows.begin(), rows.end());
        }
        ASSERT_EQ(output, rest) << "steps of " << step << ", " << threads << " threads, " << types;
      }
    }
  }
}

TEST_P(AttentionTest, DecodeAndPrefillGiveTheSameBits) {
  for (const Types& types : AllTypes()) {
    for (const int head_dim : {64, 48}) {
      const PagedShape shape = ShapeOf(types, 4, 1, head_dim);
      const PagedSequence sequence = Sequence(shape, head_dim == 64 ? 1060 : 200);
      for (const int threads : {1, 2}) {
        const auto backend = MakeDevice(GetParam(), threads);
        PagedCase prefill(backend.get(), shape, 16, 80, 3);
        const auto whole = prefill.Prefill(&sequence, sequence.num_tokens);
        PagedCase decode(backend.get(), shape, 32, 40, 4);
        const int id = decode.Add(&sequence);
        const size_t row_bytes = decode.row_elements() * SizeOf(types.compute);
        for (int64_t t = 0; t < sequence.num_tokens; ++t) {
          const auto row = decode.Step({id}, {1}, /*decode=*/true);
          ASSERT_EQ(0, std::memcmp(row.data(), whole.data() + t * row_bytes, row_bytes))
              << "position " << t << ", D " << head_dim << ", " << types;
        }
      }
    }
  }
}

TEST_P(AttentionTest, OtherSequencesInTheBatchDoNotChangeABit) {
  for (const Types& types : AllTypes()) {
    const PagedShape shape = ShapeOf(types, 4, 2, 32);
    std::vector<PagedSequence> sequences;
    for (int s = 0; s < 32; ++s) sequences.push_back(Sequence(shape, Between(2, 200)));
    const auto backend = MakeDevice(GetParam(), 3);
    PagedCase together(backend.get(), shape, 16, 32 * 14, 5);
    std::vector<int> ids;
    std::vector<int64_t> counts;
    for (const PagedSequence& sequence : sequences) {
      ids.push_back(together.Add(&sequence));
      counts.push_back(sequence.num_tokens - 1);
    }
    const auto prefilled = together.Step(ids, counts, false);
    const auto decoded = together.Step(ids, std::vector<int64_t>(32, 1), true);
    size_t offset = 0;
    const size_t row_bytes = together.row_elements() * SizeOf(types.compute);
    for (int s = 0; s < 32; ++s) {
      PagedCase alone(device_.get(), shape, 32, 14, 6);
      const int id = alone.Add(&sequences[s]);
      const auto prefill = alone.Step({id}, {counts[s]}, false);
      const auto decode = alone.Step({id}, {1}, true);
      ASSERT_EQ(0, std::memcmp(prefill.data(), prefilled.data() + offset, prefill.size())) << s;
      ASSERT_EQ(0, std::memcmp(decode.data(), decoded.data() + s * row_bytes, row_bytes)) << s;
      offset += prefill.size();
    }
  }
}

// As many segments of blocks are read for several sequences at once as they have in common.
TEST_P(AttentionTest, SequencesThatShareBlocksHaveTheBitsOfEachAlone) {
  constexpr int64_t kPrefix = kSampleOnly ? 1100 : 2300;
  const std::vector<int64_t> commons =
      kSampleOnly ? std::vector<int64_t>{0, 1060, 530}
                  : std::vector<int64_t>{0, 2299, 2080, 2048, 2032, 1100, 1023, 1024, 0, 2299};
  std::vector<std::pair<Types, int64_t>> cases;
  for (const Types& types : AllTypes()) cases.push_back({types, 0});
  cases.push_back({AllTypes().back(), 1500});  // With a window nothing is shared.
  if (kSampleOnly) cases.erase(cases.begin(), cases.end() - 2);
  for (const auto& [types, window] : cases) {
    const int group = types.compute == DType::kF32 ? 1 : 3;
    PagedShape shape = ShapeOf(types, 3 * group, 3, 16);
    shape.window = window;
    const int64_t row = int64_t{3 * group + 6} * 16;
    std::vector<PagedSequence> sequences;
    std::vector<std::vector<std::byte>> expected;
    for (const int64_t common : commons) {
      const int64_t rest = sequences.empty() ? kPrefix : Between(2, 40);
      sequences.push_back(Sequence(shape, common + rest));
      std::copy_n(sequences[0].qkv.begin(), common * row, sequences.back().qkv.begin());
      PagedCase alone(device_.get(), shape, 32, 100, 4);
      const int id = alone.Add(&sequences.back());
      alone.Step({id}, {common + rest - 1}, /*decode=*/false);
      expected.push_back(alone.Step({id}, {1}, /*decode=*/true));
    }
    for (const int threads : {1, 3}) {
      const auto backend = MakeDevice(GetParam(), threads);
      PagedCase together(backend.get(), shape, 16, 1500, 3);
      std::vector<int> ids;
      for (size_t s = 0; s < sequences.size(); ++s) {
        ids.push_back(s == 0 ? together.Add(&sequences[0])
                             : together.Fork(0, commons[s], &sequences[s]));
        const int64_t cached = commons[s] / 16 * 16;
        together.Step({ids.back()}, {sequences[s].num_tokens - 1 - cached}, /*decode=*/false);
      }
      const auto decoded = together.Step(ids, std::vector<int64_t>(ids.size(), 1), /*decode=*/true);
      for (size_t s = 0; s < sequences.size(); ++s) {
        ASSERT_EQ(0, std::memcmp(expected[s].data(), decoded.data() + s * expected[s].size(),
                                 expected[s].size()))
            << "sequence " << s << ", " << types << ", " << threads << " threads";
      }
    }
  }
}

TEST_P(AttentionTest, CopiedBlocksHaveTheSameBytes) {
  const PagedShape shape{.num_heads = 2, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kBF16};
  const PagedSequence sequence = Sequence(shape, 16);
  PagedCase paged(device_.get(), shape, 16, 4, 7);
  paged.Prefill(&sequence, 16);
  const HostKvLayerView& kv = paged.view();
  std::vector<std::byte> before(kv.base, kv.base + 4 * kv.block_stride_bytes);
  for (int32_t source = 0; source < 4; ++source) {
    const int32_t destination = (source + 1) % 4;
    ASSERT_OK(device_->CopyBlocks({.base = kv.base,
                                   .block_stride_bytes = kv.block_stride_bytes,
                                   .sources = &source,
                                   .destinations = &destination,
                                   .count = 1}));
    EXPECT_EQ(0, std::memcmp(kv.base + destination * kv.block_stride_bytes,
                             kv.base + source * kv.block_stride_bytes, kv.block_stride_bytes));
    std::memcpy(kv.base, before.data(), before.size());
  }
}

TEST_P(AttentionTest, ChecksumsOfBlocksAreTheirCrc32c) {
  for (const size_t bytes : {size_t{64}, size_t{64 * 3}, size_t{5 * 4096 + 64}}) {
    std::vector<std::byte> pool(4 * bytes);
    for (std::byte& b : pool) b = static_cast<std::byte>(random_->Below(256));
    const std::vector<int32_t> blocks = {2, 0, 3, 2};
    std::vector<uint32_t> checksums(blocks.size());
    ASSERT_OK(device_->ChecksumBlocks({.base = pool.data(),
                                       .block_stride_bytes = bytes,
                                       .blocks = blocks.data(),
                                       .checksums = checksums.data(),
                                       .count = static_cast<int64_t>(blocks.size())}));
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(checksums[i], Crc32c(pool.data() + blocks[i] * bytes, bytes)) << i << ", " << bytes;
    }
  }
}

TEST_P(AttentionTest, RotaryTableEqualsReferenceAtFarPositions) {
  constexpr int kHeadDim = 64;
  std::vector<float> inv_freq;
  for (int i = 0; i < kHeadDim / 2; ++i) inv_freq.push_back(std::pow(500000.0f, -i / 32.0f));
  std::vector<int32_t> positions;
  for (int i = 0; i < 500; ++i) positions.push_back(static_cast<int32_t>(Between(0, 1 << 20)));
  const int64_t count = 500 * kHeadDim / 2;
  std::vector<float> expected(2 * count), actual(2 * count);
  HostRotaryTableArgs args{.positions = positions.data(),
                           .inv_freq = inv_freq.data(),
                           .cos = expected.data(),
                           .sin = expected.data() + count,
                           .scale = 1.25f,
                           .num_tokens = 500,
                           .head_dim = kHeadDim};
  ASSERT_OK(reference_->RotaryTable(args));
  args.cos = actual.data();
  args.sin = actual.data() + count;
  ASSERT_OK(device_->RotaryTable(args));
  EXPECT_EQ(actual, expected);
  for (int i = 0; i < 500; ++i) {
    for (int j = 0; j < kHeadDim / 2; ++j) {
      const double angle = static_cast<float>(positions[i]) * inv_freq[j];
      ASSERT_NEAR(actual[i * kHeadDim / 2 + j], 1.25 * std::cos(angle), 2e-7);
    }
  }
}

// Those with attention of their own: what else a path has is in products of 8 bits, or of weights.
std::vector<std::string> DevicesWithAttention() {
  std::vector<std::string> devices = TestedDevices();
  std::erase_if(devices, [](const std::string& device) {
    return device.ends_with("vnni") || device.ends_with("-tiles") || device == "cpu-amx" ||
           device == "cpu-neondot";
  });
  return devices;
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTest, testing::ValuesIn(DevicesWithAttention()), DeviceName);
INSTANTIATE_TEST_SUITE_P(Fenced, AttentionTest, testing::Values("fenced"), DeviceName);

#if defined(__x86_64__)
TEST(AttentionMethodsTest, Vdpbf16psAndFusedMultiplyAddsGiveTheSameBits) {
  const auto dot = MakeDevice("cpu-avx512bf16-dot");
  const auto fma = MakeDevice("cpu-avx512bf16-fma");
  if (dot == nullptr) GTEST_SKIP() << "avx512bf16 is not on this machine";
  Random random(9);
  const PagedShape shape{.num_heads = 7, .num_kv_heads = 1, .head_dim = 112, .dtype = DType::kBF16};
  PagedSequence sequence{{}, 333};
  for (int i = 0; i < 333 * 9 * 112; ++i) {
    sequence.qkv.push_back(static_cast<float>(random.Unit() * 4 - 2));
  }
  PagedCase by_dot(dot.get(), shape, 16, 30, 1);
  PagedCase by_fma(fma.get(), shape, 16, 30, 1);
  EXPECT_EQ(by_dot.Prefill(&sequence, 50), by_fma.Prefill(&sequence, 333));
}
#endif  // __x86_64__

}  // namespace
}  // namespace tandem
