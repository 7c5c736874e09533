#include "kernels/cpu/shared_segments.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/api/attention.h"

namespace tandem {

std::vector<SharedSegment> FindSharedSegments(const HostDecodeAttentionArgs& args) {
  const int block_tokens = args.kv.shape.block_tokens;
  if (args.window != 0 || kAttentionSegmentTokens % block_tokens != 0) return {};
  const int64_t blocks = kAttentionSegmentTokens / block_tokens;  // of a segment
  const auto blocks_of = [&](int64_t sequence, int64_t segment) {
    return std::span(args.block_table + sequence * args.max_blocks + segment * blocks,
                     static_cast<size_t>(blocks));
  };
  std::vector<SharedSegment> shared;
  // Sequences that have had the same segments so far. The last block tells most others apart.
  std::vector<std::vector<int64_t>> alike(1, std::vector<int64_t>(args.num_sequences));
  std::iota(alike[0].begin(), alike[0].end(), 0);
  for (int64_t segment = 0; !alike.empty(); ++segment) {
    std::vector<std::vector<int64_t>> next;
    for (std::vector<int64_t>& sequences : alike) {
      std::erase_if(sequences, [&](int64_t s) {
        return args.num_tokens[s] < (segment + 1) * kAttentionSegmentTokens;
      });
      std::ranges::stable_sort(sequences, {},
                               [&](int64_t s) { return blocks_of(s, segment).back(); });
      for (auto first = sequences.begin(); first != sequences.end();) {
        const auto end = std::find_if(first + 1, sequences.end(), [&](int64_t s) {
          return !std::ranges::equal(blocks_of(*first, segment), blocks_of(s, segment));
        });
        if (end - first > 1) next.emplace_back(first, end);
        first = end;
      }
    }
    for (const std::vector<int64_t>& sequences : next) shared.push_back({segment, sequences});
    alike = std::move(next);
  }
  return shared;
}

}  // namespace tandem
