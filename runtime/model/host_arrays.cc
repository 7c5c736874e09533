#include "runtime/model/host_arrays.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/status_macros.h"

namespace tandem {

absl::Status HostArrays::Upload() {
  const absl::Status status = UploadPending();
  pending_.clear();
  bytes_ = 0;
  return status;
}

absl::Status HostArrays::UploadPending() {
  TANDEM_RETURN_IF_ERROR(backend_->Wait(uploaded_));
  if (memory_.host.size_bytes() < bytes_) {
    // Twice as much, so that tables that grow by a block a step seldom grow this.
    TANDEM_ASSIGN_OR_RETURN(memory_, backend_->AllocateMirror(2 * bytes_));
  }
  for (const Array& array : pending_) {
    if (array.bytes > 0) std::memcpy(memory_.host.data() + array.offset, array.host, array.bytes);
    array.set(memory_.device.data() + static_cast<std::ptrdiff_t>(array.offset), array.device);
  }
  TANDEM_RETURN_IF_ERROR(backend_->Upload(memory_.device.data(), memory_.host.data(), bytes_));
  uploaded_ = backend_->Record();
  return absl::OkStatus();
}

}  // namespace tandem
