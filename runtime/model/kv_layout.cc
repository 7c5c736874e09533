#include "runtime/model/kv_layout.h"

#include "runtime/base/status_macros.h"

namespace tandem {

absl::StatusOr<KvLayout> KvLayout::Make(const ModelConfig& config, const Backend& backend,
                                        const ModelTypes& types, int block_tokens) {
  KvLayout layout;
  layout.tile_shape = {.block_tokens = block_tokens,
                       .head_dim = static_cast<int>(config.head_dim),
                       .type = types.kv};
  TANDEM_ASSIGN_OR_RETURN(layout.tile_format,
                          backend.GetKvTileFormat(layout.tile_shape, types.compute));
  layout.num_layers = static_cast<int>(config.num_layers);
  layout.num_kv_heads = static_cast<int>(config.num_kv_heads);
  layout.layer_bytes = KvLayerBytes(layout.tile_format.tile_bytes, layout.num_kv_heads);
  layout.block_bytes = layout.layer_bytes * static_cast<size_t>(layout.num_layers);
  return layout;
}

std::vector<KvLayerView> KvLayout::Views(DevicePtr<std::byte> base) const {
  std::vector<KvLayerView> views;
  for (int layer = 0; layer < num_layers; ++layer) {
    views.push_back({.base = base,
                     .block_stride_bytes = block_bytes,
                     .layer_offset_bytes = static_cast<size_t>(layer) * layer_bytes,
                     .tile_bytes = tile_format.tile_bytes,
                     .num_kv_heads = num_kv_heads,
                     .shape = tile_shape});
  }
  return views;
}

}  // namespace tandem
