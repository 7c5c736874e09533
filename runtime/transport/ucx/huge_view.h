// Shared memory seen a second time, from where huge pages can map it.
//
// A file of /dev/shm has pages of 4 KiB, unless its mount was made otherwise, and a mapping begins
// at any of them. KV blocks are read in any order, and then the walks through page tables cost up
// to half as much as the reads. A view of the same memory begins at a multiple of 2 MiB, and
// MADV_COLLAPSE (Linux 6.1) makes the file's pages as large, whatever its mount says.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_HUGE_VIEW_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_HUGE_VIEW_H_

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

class HugeView {
 public:
  // `data` is page-aligned and begins `bytes` of one shared mapping, which may go before the view
  // does. ResourceExhausted if it cannot be mapped again.
  static absl::StatusOr<HugeView> Of(void* data, size_t bytes);
  HugeView() = default;  // Nothing.
  HugeView(HugeView&& other) noexcept { *this = std::move(other); }
  HugeView& operator=(HugeView&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HugeView();

  std::byte* data() const { return data_; }

  // All whole 2 MiB of it in huge pages; what nobody has touched becomes zeros, in a tenth of the
  // time that touching small pages takes. FailedPrecondition, in the kernel's words, if not all
  // are: it is usable all the same.
  absl::Status Collapse();

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_HUGE_VIEW_H_
