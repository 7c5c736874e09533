#include "runtime/kv_cache/kv_events.h"

#include <algorithm>

namespace tandem {

std::vector<KvEvents> SplitEvents(const KvEvents& events, size_t max_hashes) {
  const size_t total = events.stored.size() + events.removed.size();
  std::vector<KvEvents> pieces;
  auto stored = events.stored.begin();
  auto removed = events.removed.begin();
  // A snapshot says the number of the first event after it. So what follows of it as events is
  // numbered from before that; that this may be before 0 does not matter where numbers wrap.
  uint64_t next = events.first_sequence;
  if (events.snapshot) next -= total - std::min(total, max_hashes);
  do {
    KvEvents& piece = pieces.emplace_back();
    piece.first_sequence = next;
    piece.snapshot = events.snapshot && pieces.size() == 1;
    const auto take = [](auto* from, auto end, size_t most, std::vector<BlockHash>* into) {
      const auto count = std::min<ptrdiff_t>(end - *from, static_cast<ptrdiff_t>(most));
      into->assign(*from, *from + count);
      *from += count;
    };
    take(&stored, events.stored.end(), max_hashes, &piece.stored);
    take(&removed, events.removed.end(), max_hashes - piece.stored.size(), &piece.removed);
    if (!piece.snapshot) next += piece.stored.size() + piece.removed.size();
  } while (stored != events.stored.end() || removed != events.removed.end());
  return pieces;
}

}  // namespace tandem
