// Where a model's KV lies in a block: [layer][K,V][kv head][tile], all layers adjacent.

#ifndef TANDEM_RUNTIME_MODEL_KV_LAYOUT_H_
#define TANDEM_RUNTIME_MODEL_KV_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "kernels/api/kv_pool.h"
#include "runtime/config/model_config.h"
#include "runtime/model/model_types.h"

namespace tandem {

struct KvLayout {
  KvTileShape tile_shape{};
  KvTileFormat tile_format;
  int num_layers = 0;
  int num_kv_heads = 0;
  size_t layer_bytes = 0;
  size_t block_bytes = 0;  // A multiple of 64.

  // Errors as of Backend::GetKvTileFormat.
  static absl::StatusOr<KvLayout> Make(const ModelConfig& config, const Backend& backend,
                                       const ModelTypes& types, int block_tokens);

  // One view a layer of the pool at `base`.
  std::vector<KvLayerView> Views(DevicePtr<std::byte> base) const;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_KV_LAYOUT_H_
