// Arguments as a backend that computes on the host reads them. For kernels/ and its tests alone.

#ifndef TANDEM_KERNELS_SUPPORT_HOST_ARGS_H_
#define TANDEM_KERNELS_SUPPORT_HOST_ARGS_H_

#include <bit>

#include "kernels/api/attention.h"
#include "kernels/api/device_ptr.h"
#include "kernels/api/kv_pool.h"
#include "kernels/api/linear.h"
#include "kernels/api/rows.h"
#include "kernels/api/sampling.h"

namespace tandem {

using HostKvLayerView = KvLayerViewOf<HostPtr>;
using HostEmbeddingArgs = EmbeddingArgsOf<HostPtr>;
using HostRmsNormArgs = RmsNormArgsOf<HostPtr>;
using HostLayerNormArgs = LayerNormArgsOf<HostPtr>;
using HostLinearArgs = LinearArgsOf<HostPtr>;
using HostAddArgs = AddArgsOf<HostPtr>;
using HostSoftCapArgs = SoftCapArgsOf<HostPtr>;
using HostGatherRowsArgs = GatherRowsArgsOf<HostPtr>;
using HostSampleArgs = SampleArgsOf<HostPtr>;
using HostRotaryTableArgs = RotaryTableArgsOf<HostPtr>;
using HostRotaryKvWriteArgs = RotaryKvWriteArgsOf<HostPtr>;
using HostDecodeAttentionArgs = DecodeAttentionArgsOf<HostPtr>;
using HostPrefillAttentionArgs = PrefillAttentionArgsOf<HostPtr>;
using HostCopyBlocksArgs = CopyBlocksArgsOf<HostPtr>;
using HostChecksumBlocksArgs = ChecksumBlocksArgsOf<HostPtr>;
using HostDiscardBlocksArgs = DiscardBlocksArgsOf<HostPtr>;

template <typename T>
T* OnHost(DevicePtr<T> pointer) {
  return reinterpret_cast<T*>(pointer.address());
}

template <typename T>
DevicePtr<T> OfHost(T* pointer) {
  return DevicePtr<T>::At(reinterpret_cast<uintptr_t>(pointer));
}

// The two kinds of pointer have the same bits here.
template <template <template <typename> class> class Args>
Args<HostPtr> OnHost(const Args<DevicePtr>& args) {
  return std::bit_cast<Args<HostPtr>>(args);
}

template <template <template <typename> class> class Args>
Args<DevicePtr> OfHost(const Args<HostPtr>& args) {
  return std::bit_cast<Args<DevicePtr>>(args);
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_HOST_ARGS_H_
