#include "runtime/protocol/peer_messages.h"

#include "runtime/base/check_range.h"
#include "runtime/base/status_macros.h"

namespace tandem {

absl::Status ValidateBlocks(const PrefillSubmit& submit) {
  TANDEM_RETURN_IF_ERROR(CheckRange("num_blocks", submit.num_blocks, 1, kMaxRequestTokens));
  return CheckRange("first_block", submit.first_block, 0, submit.num_blocks);
}

}  // namespace tandem
