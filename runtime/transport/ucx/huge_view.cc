#include "runtime/transport/ucx/huge_view.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_format.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr int kMadvCollapse = 25;  // Not in Debian 12's headers; its kernel has it.
constexpr int kMostTries = 16;

}  // namespace

absl::StatusOr<HugeView> HugeView::Of(void* data, size_t bytes) {
  bytes = RoundUp(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  const auto failed = [bytes] {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot map %d bytes of shared memory again: %s", bytes, std::strerror(errno)));
  };
  // Addresses with a huge page's border among the first; what is around the view is given back.
  void* const reserved =
      mmap(nullptr, bytes + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return failed();
  const size_t before = -reinterpret_cast<uintptr_t>(reserved) % kHugePageBytes;
  HugeView view;
  view.data_ = static_cast<std::byte*>(reserved) + before;
  view.bytes_ = bytes;
  if (before > 0) munmap(reserved, before);
  munmap(view.data_ + bytes, kHugePageBytes - before);
  // With an old size of 0 the same pages are mapped twice. By the system's own call: UCX puts a
  // function of four arguments in the place of mremap, which loses the fifth.
  if (syscall(SYS_mremap, data, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, view.data_) == -1) {
    return failed();  // The view gives its addresses back.
  }
  return view;
}

HugeView::~HugeView() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::Status HugeView::Collapse() {
  const size_t whole = bytes_ / kHugePageBytes * kHugePageBytes;
  if (whole == 0) return absl::OkStatus();
  // Where there is no page at all, there is none to collapse (Linux 6.18: in the whole file).
  volatile std::byte* const touched = data_;
  for (size_t at = 0; at < whole; at += kHugePageBytes) touched[at] = touched[at];
  // EAGAIN: the kernel was busy with a page; all others have been seen to.
  for (int tries = 0; tries < kMostTries; ++tries) {
    if (madvise(data_, whole, kMadvCollapse) == 0) return absl::OkStatus();
    if (errno != EAGAIN) break;
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "MADV_COLLAPSE of %d bytes of shared memory: %s", whole, std::strerror(errno)));
}

}  // namespace tandem
