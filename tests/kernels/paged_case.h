// Sequences in a paged pool, on one device: writes their K and V, runs attention, gives the bytes.

#ifndef TANDEM_TESTS_KERNELS_PAGED_CASE_H_
#define TANDEM_TESTS_KERNELS_PAGED_CASE_H_

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tests/kernels/kernel_test_support.h"

namespace tandem {

struct PagedShape {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  DType dtype;                         // Computed in.
  std::optional<KvType> kv_type = {};  // Absent: what keeps those numbers.
  bool rotary = true;
  int64_t window = 0;
  bool head_norms = false;
  float score_cap = 0.0f;
};

// One sequence's projections: row t is [H + 2G, D].
struct PagedSequence {
  std::vector<float> qkv;
  int64_t num_tokens;
};

class PagedCase {
 public:
  // The pool starts as NaNs: what was never written must not matter.
  PagedCase(TestDevice* device, const PagedShape& shape, int block_tokens, int64_t num_blocks,
            uint64_t seed)
      : device_(device), shape_(shape), block_tokens_(block_tokens), random_(seed) {
    const KvTileShape tile{block_tokens, shape.head_dim,
                           shape.kv_type.value_or(KvTypeOf(shape.dtype))};
    const auto format = device->backend().GetKvTileFormat(tile, shape.dtype);
    EXPECT_TRUE(format.ok()) << format.status();
    const size_t layer_bytes = KvLayerBytes(format->tile_bytes, shape.num_kv_heads);
    // The second of three layers.
    view_ = {.base = nullptr,
             .block_stride_bytes = 3 * layer_bytes,
             .layer_offset_bytes = layer_bytes,
             .tile_bytes = format->tile_bytes,
             .num_kv_heads = shape.num_kv_heads,
             .shape = tile};
    auto pool = device->backend().AllocatePinned(view_.block_stride_bytes * num_blocks);
    EXPECT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    std::memset(pool_.data(), 0xFF, pool_.size_bytes());
    view_.base = pool_.data();
    free_blocks_.resize(num_blocks);
    std::iota(free_blocks_.begin(), free_blocks_.end(), 0);
    for (size_t i = free_blocks_.size(); i > 1; --i) {
      std::swap(free_blocks_[i - 1], free_blocks_[random_.Below(i)]);
    }
    for (int i = 0; i < shape.head_dim / 2; ++i) {
      inv_freq_.push_back(std::pow(10000.0f, -2.0f * i / shape.head_dim));
    }
    // The same in every case.
    for (int d = 0; d < shape.head_dim; ++d) {
      query_norm_.push_back(0.5f + 0.01f * static_cast<float>(d % 90));
      key_norm_.push_back(1.5f - 0.01f * static_cast<float>(d % 70));
    }
  }

  const HostKvLayerView& view() const { return view_; }
  int64_t row_elements() const { return int64_t{shape_.num_heads} * shape_.head_dim; }

  // Adds a sequence; its blocks come in random order.
  int Add(const PagedSequence* sequence) {
    std::vector<int32_t> blocks;
    for (int64_t t = 0; t < sequence->num_tokens; t += block_tokens_) {
      blocks.push_back(free_blocks_.back());
      free_blocks_.pop_back();
    }
    sequences_.push_back({sequence, blocks, 0});
    return static_cast<int>(sequences_.size()) - 1;
  }

  // Adds a sequence whose first `num_tokens`, whole blocks of them, are those of `id` and cached.
  int Fork(int id, int64_t num_tokens, const PagedSequence* sequence) {
    const int fork = Add(sequence);
    const int64_t num_blocks = num_tokens / block_tokens_;
    std::copy_n(sequences_[id].blocks.begin(), num_blocks, sequences_[fork].blocks.begin());
    sequences_[fork].done = num_blocks * block_tokens_;
    return fork;
  }

  // What a step's attention takes, its K and V being written.
  struct Written {
    std::vector<std::byte> query;
    std::vector<int32_t> table, query_start, num_cached, num_tokens;
    int64_t max_blocks;
  };

  // One step: the next counts[i] tokens of sequences ids[i], by prefill attention (or by decode
  // attention, all counts 1). Returns [Σ counts, H, D].
  std::vector<std::byte> Step(const std::vector<int>& ids, const std::vector<int64_t>& counts,
                              bool decode) {
    return Attend(device_, Write(device_, ids, counts), decode);
  }

  // The parts of a step, each on some device that has such tiles in the memory of this one's.
  Written Write(TestDevice* device, const std::vector<int>& ids,
                const std::vector<int64_t>& counts) {
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t stride = int64_t{shape_.num_heads + 2 * shape_.num_kv_heads} * shape_.head_dim;
    std::vector<float> qkv;
    std::vector<int32_t> positions, query_start = {0}, num_cached, num_tokens;
    std::vector<int64_t> slots;
    int64_t max_blocks = 1;
    for (const int id : ids) {
      max_blocks = std::max<int64_t>(max_blocks, sequences_[id].blocks.size());
    }
    max_blocks += 2;
    std::vector<int32_t> table(std::max<int64_t>(ids.size(), 1) * max_blocks, -1);
    for (size_t i = 0; i < ids.size(); ++i) {
      State& s = sequences_[ids[i]];
      std::copy(s.blocks.begin(), s.blocks.end(), table.begin() + i * max_blocks);
      num_cached.push_back(static_cast<int32_t>(s.done));
      for (int64_t n = 0; n < counts[i]; ++n, ++s.done) {
        const auto row = s.sequence->qkv.begin() + s.done * stride;
        qkv.insert(qkv.end(), row, row + stride);
        positions.push_back(static_cast<int32_t>(s.done));
        slots.push_back(int64_t{s.blocks[s.done / block_tokens_]} * block_tokens_ +
                        s.done % block_tokens_);
      }
      query_start.push_back(query_start.back() + static_cast<int32_t>(counts[i]));
      num_tokens.push_back(static_cast<int32_t>(s.done));
    }
    const int64_t half = shape_.head_dim / 2;
    std::vector<float> cos(total * half), sin(total * half);
    Ok(device->RotaryTable({.positions = positions.data(),
                            .inv_freq = inv_freq_.data(),
                            .cos = cos.data(),
                            .sin = sin.data(),
                            .num_tokens = total,
                            .head_dim = shape_.head_dim}));
    const size_t bytes = total * row_elements() * SizeOf(shape_.dtype);
    // Sequences whose runs are all empty still want pointers.
    std::vector<std::byte> query(bytes + 1);
    Ok(device->RotaryKvWrite(
        {.query = qkv.data(),
         .key = qkv.data() + row_elements(),
         .value = qkv.data() + row_elements() + int64_t{shape_.num_kv_heads} * shape_.head_dim,
         .input_stride = stride,
         .cos = shape_.rotary ? cos.data() : nullptr,
         .sin = shape_.rotary ? sin.data() : nullptr,
         .query_norm = shape_.head_norms ? query_norm_.data() : nullptr,
         .key_norm = shape_.head_norms ? key_norm_.data() : nullptr,
         .norm_epsilon = 1e-5f,
         .slots = slots.data(),
         .kv = view_,
         .query_out = query.data(),
         .num_tokens = total,
         .num_heads = shape_.num_heads,
         .compute_dtype = shape_.dtype}));
    last_query_.assign(query.begin(), query.end() - 1);
    return {std::move(query),      std::move(table),      std::move(query_start),
            std::move(num_cached), std::move(num_tokens), max_blocks};
  }
  std::vector<std::byte> Attend(TestDevice* device, const Written& written, bool decode) const {
    const auto num_sequences = static_cast<int64_t>(written.num_tokens.size());
    std::vector<std::byte> output(written.query.size());
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    const auto with_shape = [&](auto args) {
      args.query = written.query.data();
      args.kv = view_;
      args.block_table = written.table.data();
      args.output = output.data();
      args.num_sequences = num_sequences;
      args.max_blocks = written.max_blocks;
      args.num_heads = shape_.num_heads;
      args.compute_dtype = shape_.dtype;
      args.softmax_scale = scale;
      args.score_cap = shape_.score_cap;
      args.window = shape_.window;
      return args;
    };
    if (decode) {
      Ok(device->DecodeAttention(
          with_shape(HostDecodeAttentionArgs{.num_tokens = written.num_tokens.data()})));
    } else {
      Ok(device->PrefillAttention(with_shape(HostPrefillAttentionArgs{
          .query_start = written.query_start.data(), .num_cached = written.num_cached.data()})));
    }
    output.pop_back();
    return output;
  }

  // A whole sequence in chunks, alone.
  std::vector<std::byte> Prefill(const PagedSequence* sequence, int64_t chunk) {
    const int id = Add(sequence);
    std::vector<std::byte> all;
    for (int64_t done = 0; done < sequence->num_tokens; done += chunk) {
      const auto part =
          Step({id}, {std::min(chunk, sequence->num_tokens - done)}, /*decode=*/false);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  // Makes every slot of the blocks that no further token of a sequence sees what memory may hold:
  // NaNs, and takes the blocks out of its table.
  void ForgetWhatTheWindowLeft(int id) {
    State& s = sequences_[id];
    const int64_t first = FirstVisible(s.done + 1, shape_.window);
    for (int64_t i = 0; i < first / block_tokens_; ++i) {
      if (s.blocks[i] < 0) continue;
      std::memset(view_.base + s.blocks[i] * view_.block_stride_bytes, 0xFF,
                  view_.block_stride_bytes);
      s.blocks[i] = -1;
    }
  }

  // Rotated queries of the last step, in the compute type.
  const std::vector<std::byte>& last_query() const { return last_query_; }

 private:
  struct State {
    const PagedSequence* sequence;
    std::vector<int32_t> blocks;
    int64_t done;
  };

  static void Ok(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

  TestDevice* const device_;
  const PagedShape shape_;
  const int block_tokens_;
  Random random_;
  HostKvLayerView view_;
  PinnedBuffer pool_;
  std::vector<int32_t> free_blocks_;
  std::vector<float> inv_freq_, query_norm_, key_norm_;
  std::vector<State> sequences_;
  std::vector<std::byte> last_query_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_PAGED_CASE_H_
