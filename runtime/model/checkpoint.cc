#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/config/json.h"
#include "runtime/model/weight_source.h"

namespace tandem {
namespace {

namespace json = boost::json;

constexpr size_t kMaxIndexBytes = size_t{32} << 20;
constexpr size_t kMaxShards = 1'024;

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// A plain file name of the folder itself: nothing that could lead out of it.
bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
         name.ends_with(".safetensors");
}

class Checkpoint final : public WeightSource {
 public:
  using Shards = std::map<std::string, std::unique_ptr<SafetensorsFile>>;  // By path.
  using Holders = std::map<std::string, const SafetensorsFile*, std::less<>>;

  Checkpoint(Shards shards, Holders holders, std::string identity)
      : shards_(std::move(shards)), holders_(std::move(holders)), identity_(std::move(identity)) {}

  bool Contains(std::string_view name) const override { return holders_.contains(name); }

  std::optional<TensorType> TypeOf(std::string_view name) const override {
    const auto holder = holders_.find(name);
    return holder == holders_.end() ? std::nullopt : holder->second->TypeOf(name);
  }

  std::optional<std::vector<int64_t>> ShapeOf(std::string_view name) const override {
    const auto holder = holders_.find(name);
    if (holder == holders_.end()) return std::nullopt;
    return holder->second->header().tensors.find(name)->second.shape;
  }

  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, file] : holders_) names.push_back(name);
    return names;
  }

  absl::StatusOr<TensorView> Tensor(std::string_view name,
                                    std::span<const int64_t> shape) override {
    const auto holder = holders_.find(name);
    if (holder == holders_.end()) {
      return absl::NotFoundError(absl::StrFormat("%s: tensor \"%s\" is missing",
                                                 shards_.begin()->first, std::string(name)));
    }
    TANDEM_ASSIGN_OR_RETURN(TensorView view, holder->second->Tensor(name));
    if (!std::equal(shape.begin(), shape.end(), view.shape.begin(), view.shape.end())) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor \"%s\" has shape %s, config.json asks for %s", shards_.begin()->first,
          std::string(name), ShapeText(view.shape), ShapeText(shape)));
    }
    return view;
  }

  void Release() override {}  // Views point into the mapped files.

  std::string Identity() const override { return identity_; }

 private:
  const Shards shards_;
  const Holders holders_;
  const std::string identity_;
};

absl::StatusOr<std::string> FileIdentity(const std::string& path) {
  struct stat info;
  char real[PATH_MAX];
  if (::stat(path.c_str(), &info) != 0 || ::realpath(path.c_str(), real) == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot stat ", path));
  }
  return absl::StrFormat("%s|%d|%d.%09d|%d|%d\n", real, info.st_size, info.st_mtim.tv_sec,
                         info.st_mtim.tv_nsec, info.st_ino, info.st_dev);
}

absl::Status OpenShards(const std::string& folder,
                        const std::map<std::string, std::string>& file_of_tensor,
                        Checkpoint::Shards* shards, Checkpoint::Holders* holders) {
  for (const auto& [tensor, file_name] : file_of_tensor) {
    const std::string path = folder + "/" + file_name;
    auto found = shards->find(path);
    if (found == shards->end()) {
      TANDEM_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
      found = shards->emplace(path, std::move(file)).first;
    }
    if (!found->second->Contains(tensor)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: the index places tensor \"%s\" here, but the file lacks it", path,
                          tensor.substr(0, 100)));
    }
    holders->emplace(tensor, found->second.get());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text,
                                                                         const std::string& what) {
  const JsonLimits limits{
      .max_bytes = kMaxIndexBytes, .max_depth = 8, .refuse_duplicate_keys = true};
  TANDEM_ASSIGN_OR_RETURN(const json::object object, ParseJsonObject(text, what, limits));
  const JsonFields fields(object, what);
  TANDEM_ASSIGN_OR_RETURN(const json::object* map, fields.ObjectOrNull("weight_map"));
  if (map == nullptr || map->empty()) return fields.Wrong("weight_map", "is missing or empty");
  if (map->size() > kMaxSafetensorsTensors) {
    return fields.Wrong("weight_map", absl::StrFormat("lists %d tensors, at most %d", map->size(),
                                                      kMaxSafetensorsTensors));
  }
  std::map<std::string, std::string> result;
  std::map<std::string, int> files;
  for (const auto& member : *map) {
    const json::value& value = member.value();
    if (!value.is_string() ||
        !IsPlainFileName({value.get_string().data(), value.get_string().size()})) {
      return fields.Wrong("weight_map",
                          absl::StrFormat("holds %s, want the name of a *.safetensors file beside "
                                          "the index",
                                          ShortJson(value)));
    }
    const std::string file(value.get_string().data(), value.get_string().size());
    ++files[file];
    result.emplace(std::string(member.key().data(), member.key().size()), file);
  }
  if (files.size() > kMaxShards) {
    return fields.Wrong("weight_map",
                        absl::StrFormat("names %d files, at most %d", files.size(), kMaxShards));
  }
  return result;
}

absl::StatusOr<std::unique_ptr<WeightSource>> OpenCheckpoint(const std::string& folder) {
  const std::string single = folder + "/model.safetensors";
  Checkpoint::Shards shards;
  Checkpoint::Holders holders;
  std::string identity;
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(single);
  if (file.ok()) {
    for (const auto& [name, entry] : (*file)->header().tensors) holders.emplace(name, file->get());
    shards.emplace(single, *std::move(file));
  } else if (!absl::IsNotFound(file.status())) {
    return file.status();
  } else {
    const std::string index_path = folder + "/model.safetensors.index.json";
    absl::StatusOr<std::string> text = ReadSmallFile(index_path, kMaxIndexBytes);
    if (absl::IsNotFound(text.status())) {
      return absl::NotFoundError(absl::StrCat(
          folder, " holds neither model.safetensors nor model.safetensors.index.json"));
    }
    if (!text.ok()) return text.status();
    TANDEM_ASSIGN_OR_RETURN(const auto file_of_tensor, ParseSafetensorsIndex(*text, index_path));
    TANDEM_RETURN_IF_ERROR(OpenShards(folder, file_of_tensor, &shards, &holders));
    // It says where each tensor is read from, and may change alone.
    TANDEM_ASSIGN_OR_RETURN(identity, FileIdentity(index_path));
  }
  for (const auto& [path, unused] : shards) {
    TANDEM_ASSIGN_OR_RETURN(const std::string one, FileIdentity(path));
    identity += one;
  }
  return std::make_unique<Checkpoint>(std::move(shards), std::move(holders), std::move(identity));
}

}  // namespace tandem
