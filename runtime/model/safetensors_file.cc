#include "runtime/model/safetensors_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/math.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/config/json.h"

namespace tandem {
namespace {

namespace json = boost::json;

// Bits an element of a dtype name takes; 0 for a name the format does not know.
int BitsOf(std::string_view dtype) {
  struct Known {
    std::string_view name;
    int bits;
  };
  static constexpr Known kKnown[] = {
      {"F64", 64}, {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"I64", 64}, {"U64", 64},
      {"I32", 32}, {"U32", 32},    {"I16", 16},    {"U16", 16},    {"I8", 8},   {"U8", 8},
      {"BOOL", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"C64", 64},
  };
  for (const Known& known : kKnown) {
    if (known.name == dtype) return known.bits;
  }
  return 0;
}

std::optional<TensorType> TypeNamed(std::string_view dtype) {
  for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kI32,
                          TensorType::kF8E4M3}) {
    if (Name(type) == dtype) return type;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<int64_t>> ReadShape(const JsonFields& fields) {
  const json::value* shape = fields.Find("shape");
  if (shape == nullptr || !shape->is_array()) return fields.Wrong("shape", "is not a list");
  if (shape->get_array().size() > kMaxTensorDimensions) {
    return fields.Wrong("shape", absl::StrFormat("has %d dimensions, at most %d",
                                                 shape->get_array().size(), kMaxTensorDimensions));
  }
  std::vector<int64_t> result;
  for (const json::value& value : shape->get_array()) {
    if (!value.is_int64() || value.get_int64() < 0) {
      return fields.Wrong("shape",
                          absl::StrCat("holds ", ShortJson(value), ", want integers from 0"));
    }
    result.push_back(value.get_int64());
  }
  return result;
}

absl::Status ReadOffsets(const JsonFields& fields, uint64_t data_bytes, TensorEntry* entry) {
  const json::value* offsets = fields.Find("data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->get_array().size() != 2) {
    return fields.Wrong("data_offsets", "is not a list of two");
  }
  uint64_t values[2];
  for (int i = 0; i < 2; ++i) {
    const json::value& value = offsets->get_array()[i];
    if (!value.is_int64() || value.get_int64() < 0) {
      return fields.Wrong("data_offsets",
                          absl::StrCat("holds ", ShortJson(value), ", want an integer from 0"));
    }
    values[i] = static_cast<uint64_t>(value.get_int64());
  }
  if (values[0] > values[1] || values[1] > data_bytes) {
    return fields.Wrong(
        "data_offsets",
        absl::StrFormat("are [%d, %d] in %d bytes of data%s", values[0], values[1], data_bytes,
                        values[0] > values[1] ? "" : ": the file is shorter than its header says"));
  }
  entry->begin = values[0];
  entry->end = values[1];
  return absl::OkStatus();
}

absl::StatusOr<TensorEntry> ReadEntry(const json::value& value, const std::string& what,
                                      uint64_t data_bytes) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is ", ShortJson(value), ", want an object"));
  }
  const JsonFields fields(value.get_object(), what);
  TensorEntry entry;
  TANDEM_ASSIGN_OR_RETURN(entry.dtype, fields.String("dtype"));
  TANDEM_ASSIGN_OR_RETURN(entry.shape, ReadShape(fields));
  TANDEM_RETURN_IF_ERROR(ReadOffsets(fields, data_bytes, &entry));
  const int bits = BitsOf(entry.dtype);
  if (bits == 0) return entry;
  std::optional<uint64_t> want = static_cast<uint64_t>(bits) / 8;
  for (int64_t dimension : entry.shape) {
    want = want ? CheckedMultiply<uint64_t>(*want, static_cast<uint64_t>(dimension)) : want;
  }
  if (!want || *want != entry.end - entry.begin) {
    return fields.Wrong(
        "data_offsets",
        absl::StrFormat("span %d bytes, but shape and dtype take %s", entry.end - entry.begin,
                        want ? absl::StrCat(*want) : std::string("more than 64 bits can count")));
  }
  return entry;
}

// Tensors in order of their place must follow each other without overlap or hole to the end.
absl::Status CheckCoverage(const SafetensorsHeader& header, uint64_t data_bytes,
                           const std::string& what) {
  std::vector<std::pair<const TensorEntry*, const std::string*>> order;
  order.reserve(header.tensors.size());
  for (const auto& [name, entry] : header.tensors) order.emplace_back(&entry, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first->begin, a.first->end, *a.second) <
           std::tie(b.first->begin, b.first->end, *b.second);
  });
  uint64_t covered = 0;
  for (const auto& [entry, name] : order) {
    if (entry->begin != covered) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor \"%s\" begins at byte %d, %s the %d bytes before it", what,
                          name->substr(0, 100), entry->begin,
                          entry->begin < covered ? "inside" : "behind a hole after", covered));
    }
    covered = entry->end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: its tensors cover %d of %d bytes of data", what, covered, data_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> SafetensorsHeader::Parse(std::span<const uint8_t> prefix,
                                                           uint64_t file_bytes,
                                                           const std::string& what) {
  if (file_bytes < 8 || prefix.size() < 8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, too short for a header length", what, file_bytes));
  }
  TANDEM_RETURN_IF_ERROR(
      RefuseLfsPointer(what, {reinterpret_cast<const char*>(prefix.data()), prefix.size()}));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | prefix[static_cast<size_t>(i)];
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: header of %d bytes, at most %d", what,
                                                      header_bytes, kMaxSafetensorsHeaderBytes));
  }
  if (header_bytes > file_bytes - 8 || header_bytes > prefix.size() - 8) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: header of %d bytes in a file of %d: truncated", what, header_bytes, file_bytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(prefix.data()) + 8, header_bytes);
  const JsonLimits limits{
      .max_bytes = kMaxSafetensorsHeaderBytes, .max_depth = 4, .refuse_duplicate_keys = true};
  TANDEM_ASSIGN_OR_RETURN(const json::object object,
                          ParseJsonObject(text, what + ": header", limits));
  if (object.size() > kMaxSafetensorsTensors) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d tensors, at most %d", what, object.size(), kMaxSafetensorsTensors));
  }
  SafetensorsHeader header;
  header.data_start = 8 + header_bytes;
  const uint64_t data_bytes = file_bytes - header.data_start;
  for (const auto& member : object) {
    const std::string name(member.key().data(), member.key().size());
    if (name == "__metadata__") continue;
    TANDEM_ASSIGN_OR_RETURN(
        TensorEntry entry,
        ReadEntry(member.value(), absl::StrFormat("%s: tensor \"%s\"", what, name.substr(0, 100)),
                  data_bytes));
    header.tensors.emplace(name, std::move(entry));
  }
  TANDEM_RETURN_IF_ERROR(CheckCoverage(header, data_bytes, what));
  return header;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  struct stat info;
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < 8) {
    ::close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a regular file of at least 8 bytes"));
  }
  const uint64_t size_bytes = static_cast<uint64_t>(info.st_size);
  void* const base = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: cannot map %d bytes", path, size_bytes));
  }
  const uint8_t* const bytes = static_cast<const uint8_t*>(base);
  absl::StatusOr<SafetensorsHeader> header =
      SafetensorsHeader::Parse({bytes, size_bytes}, size_bytes, path);
  if (!header.ok()) {
    ::munmap(base, size_bytes);
    return header.status();
  }
  return std::unique_ptr<SafetensorsFile>(
      new SafetensorsFile(path, bytes, size_bytes, *std::move(header)));
}

SafetensorsFile::~SafetensorsFile() { ::munmap(const_cast<uint8_t*>(base_), size_bytes_); }

std::optional<TensorType> SafetensorsFile::TypeOf(std::string_view name) const {
  const auto found = header_.tensors.find(name);
  return found == header_.tensors.end() ? std::nullopt : TypeNamed(found->second.dtype);
}

absl::StatusOr<TensorView> SafetensorsFile::Tensor(std::string_view name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": no tensor \"", std::string(name), "\""));
  }
  const TensorEntry& entry = found->second;
  const std::optional<TensorType> type = TypeNamed(entry.dtype);
  if (!type) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: tensor \"%s\" is %s; supported are F32, F16, BF16 and, of matrices, F8_E4M3", path_,
        std::string(name), entry.dtype.substr(0, 60)));
  }
  return TensorView{
      *type, entry.shape, {base_ + header_.data_start + entry.begin, entry.end - entry.begin}};
}

}  // namespace tandem
