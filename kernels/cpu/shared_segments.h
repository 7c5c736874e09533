// Segments of attention whose blocks are in the tables of several sequences, as those of a common
// prefix are: read once for all of them. Every sequence sees all of such a segment, so that its
// rows are computed like any others of one task, with the same bits.

#ifndef TANDEM_KERNELS_CPU_SHARED_SEGMENTS_H_
#define TANDEM_KERNELS_CPU_SHARED_SEGMENTS_H_

#include <cstdint>
#include <vector>

#include "kernels/support/host_args.h"

namespace tandem {

struct SharedSegment {
  int64_t segment;
  std::vector<int64_t> sequences;  // At least two.
};

// By segment; those of a sequence are its first ones. None with a window, or blocks that do not end
// where segments do.
std::vector<SharedSegment> FindSharedSegments(const HostDecodeAttentionArgs& args);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_SHARED_SEGMENTS_H_
