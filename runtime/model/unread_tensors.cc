#include "runtime/model/unread_tensors.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem {
namespace {

constexpr size_t kNamesShown = 4;

bool IsBuffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

// "lm_head" of "lm_head.weight".
std::string_view ModuleOf(std::string_view name) { return name.substr(0, name.rfind('.')); }

// A scale of what a matrix of 8-bit floats is multiplied with, which is not made 8 bits here.
bool IsInputScale(std::string_view name, const WeightSource& source) {
  const std::string_view kind = name.substr(ModuleOf(name).size());
  if (kind != ".input_scale" && kind != ".activation_scale" && kind != ".input_scale_ub") {
    return false;
  }
  return source.TypeOf(std::string(ModuleOf(name)) + ".weight") == TensorType::kF8E4M3;
}

}  // namespace

std::string ShortList(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesShown); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", "\"", names[i].substr(0, 100), "\"");
  }
  if (names.size() > kNamesShown) text += ", …";
  return text;
}

absl::StatusOr<std::vector<std::string>> UnreadTensors(const ModelSpec& spec,
                                                       const WeightSource& source) {
  std::set<std::string> read;
  for (TensorDecl& tensor : spec.Tensors()) read.insert(std::move(tensor.name));
  std::set<std::string_view> modules;
  for (const std::string& name : read) modules.insert(ModuleOf(name));

  std::vector<std::string> unread, missed;
  for (std::string& name : source.Names()) {
    if (read.contains(name) || IsBuffer(name) || IsInputScale(name, source)) continue;
    const bool matters = name.starts_with(spec.layers_prefix) || modules.contains(ModuleOf(name));
    (matters ? missed : unread).push_back(std::move(name));
  }
  if (missed.empty()) return unread;
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d tensors of the checkpoint would change the numbers, but by config.json (attention_bias, "
      "mlp_bias, num_hidden_layers, quantization_config) there are none: %s",
      missed.size(), ShortList(missed)));
}

}  // namespace tandem
