#include "runtime/transport/ucx/ucx_context.h"

#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace tandem {

absl::Status UcxError(const std::string& what, ucs_status_t status) {
  return absl::UnavailableError(absl::StrCat("UCX: ", what, ": ", ucs_status_string(status)));
}

namespace {

// What UCX keeps in /dev/shm beside the pool: its message queues, a few MiB a process.
constexpr int64_t kQueueBytes = int64_t{16} << 20;

absl::Status CheckSharedMemory(int64_t pool_bytes) {
  TANDEM_ASSIGN_OR_RETURN(const SharedMemory space, ShmFolder::MeasureSpace());
  if (space.free_bytes < pool_bytes + kQueueBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "a KV pool of %d bytes (and %d for UCX) does not fit /dev/shm, which has %d free: make it "
        "larger, lower --kv-memory, or choose --transport grpc",
        pool_bytes, kQueueBytes, space.free_bytes));
  }
  return absl::OkStatus();
}

ucs_memory_type_t TypeOf(const UcxMemory& memory) {
  return memory.kind == MemoryKind::kHost ? UCS_MEMORY_TYPE_HOST : UCS_MEMORY_TYPE_CUDA;
}

absl::Status CheckDevices(const std::string& devices) {
  if (!devices.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "UCX moves a device's blocks over interfaces, within a host too: set --ucx-devices (\"lo\" "
      "within one), or --transport grpc");
}

// Whether a plain name is that of an interface: "eth0", or a port of InfiniBand, "mlx5_0:1". What
// else UCX has words for ("all", "^eth0") it looks at itself.
bool IsThere(const std::string& name) {
  const bool is_plain =
      name != "all" && std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("_.:-", c);
      });
  if (!is_plain || if_nametoindex(name.c_str()) != 0) return true;
  std::error_code error;
  const std::string device = name.substr(0, name.find(':'));
  return std::filesystem::exists("/sys/class/infiniband/" + device, error);
}

// UCX warns of one that is not there, and goes on without: no block would come or go.
absl::Status CheckInterfaces(const std::string& devices) {
  const std::vector<std::string> names = absl::StrSplit(devices, ',', absl::SkipEmpty());
  for (const std::string& name : names) {
    if (IsThere(name)) continue;
    std::vector<std::string> there;
    if (struct if_nameindex* const all = if_nameindex(); all != nullptr) {
      for (const struct if_nameindex* each = all; each->if_index != 0; ++each) {
        there.emplace_back(each->if_name);
      }
      if_freenameindex(all);
    }
    return absl::FailedPreconditionError(
        absl::StrFormat("--ucx-devices: %s is no interface of this machine, which has %s", name,
                        absl::StrJoin(there, ", ")));
  }
  return absl::OkStatus();
}

// UCX as a transport uses it.
absl::StatusOr<ucp_context_h> OpenUcx(const std::string& devices, bool shares_memory) {
  TANDEM_RETURN_IF_ERROR(CheckInterfaces(devices));
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return UcxError("reading its configuration", status);
  }
  // Without CMA, which UCX would prefer and which halves the speed (docs/design.md).
  std::string transports = "posix,self";
  if (!devices.empty()) transports = shares_memory ? "^cma,sysv" : "^cma,sysv,posix";
  ucs_status_t status = ucp_config_modify(config, "TLS", transports.c_str());
  if (status == UCS_OK && !devices.empty()) {
    status = ucp_config_modify(config, "NET_DEVICES", devices.c_str());
  }
  // What a killed peer must not be able to break in UCX 1.13, nor in 1.22 (README.md).
  const std::pair<const char*, const char*> settings[] = {
      {"RNDV_THRESH", "inf"}, {"ZCOPY_THRESH", "inf"}, {"KEEPALIVE_INTERVAL", "inf"}};
  for (const auto& [name, value] : settings) {
    if (status == UCS_OK) status = ucp_config_modify(config, name, value);
  }

  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  params.name = "tandem";
  ucp_context_h context = nullptr;
  if (status == UCS_OK) status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK) {
    return absl::FailedPreconditionError(absl::StrCat("UCX cannot use \"", transports,
                                                      "\" on devices \"", devices,
                                                      "\": ", ucs_status_string(status)));
  }
  return context;
}

// UCX moves a device's memory of that type.
absl::Status CheckReach(ucp_context_h context, ucs_memory_type_t type) {
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  const ucs_status_t status = ucp_context_query(context, &attributes);
  if (status != UCS_OK) return UcxError("asking whose memory it reaches", status);
  if ((attributes.memory_types >> type & 1) != 0) return absl::OkStatus();
  std::vector<std::string> reached;
  for (int each = UCS_MEMORY_TYPE_HOST; each < UCS_MEMORY_TYPE_LAST; ++each) {
    if ((attributes.memory_types >> each & 1) != 0) reached.push_back(ucs_memory_type_names[each]);
  }
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return absl::FailedPreconditionError(absl::StrFormat(
      "UCX %d.%d.%d reaches memory of: %s; the KV pool lies in memory of %s: install a UCX that "
      "was built with that, or choose --transport grpc",
      major, minor, release, absl::StrJoin(reached, ", "), ucs_memory_type_names[type]));
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(const UcxOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckPool(options.pool));
  const bool on_device = options.pool.memory == MemoryKind::kDevice;
  const bool allocates = options.pool.base == nullptr;
  if (options.shares_memory() && !allocates) {
    return absl::FailedPreconditionError(
        "peers of one host map the KV pool that UCX allocates: it cannot lie elsewhere");
  }
  if (on_device) {
    TANDEM_RETURN_IF_ERROR(CheckDevices(options.devices));
  } else if (!options.shared_memory && options.devices.empty()) {
    return absl::InvalidArgumentError("UCX without shared memory needs devices");
  }
  // First of all: it makes room.
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ShmFolder> folder, ShmFolder::Create());
  if (allocates) TANDEM_RETURN_IF_ERROR(CheckSharedMemory(options.pool.kv.pool_bytes()));

  std::unique_ptr<UcxContext> context(new UcxContext(std::move(folder), options));
  // Memory domains take their settings from the environment alone, when the context is made.
  setenv("UCX_POSIX_DIR", context->folder_->path().c_str(), /*overwrite=*/1);
  TANDEM_ASSIGN_OR_RETURN(context->context_, OpenUcx(options.devices, options.shares_memory()));
  if (on_device) {
    TANDEM_RETURN_IF_ERROR(CheckReach(context->context_, context->memory_type()));
  }
  TANDEM_RETURN_IF_ERROR(context->OpenWorker());
  TANDEM_RETURN_IF_ERROR(on_device ? context->MapDevicePool(options.pool)
                                   : context->MapPool(options.pool));
  return context;
}

absl::Status CheckUcxMemory(const UcxMemory& memory, const std::string& devices) {
  TANDEM_RETURN_IF_ERROR(CheckDevices(devices));
  TANDEM_ASSIGN_OR_RETURN(const ucp_context_h context, OpenUcx(devices, /*shares_memory=*/false));
  const absl::Status reach = CheckReach(context, TypeOf(memory));
  ucp_cleanup(context);
  return reach;
}

absl::Status UcxContext::OpenWorker() {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // Made here, then the progress thread's own.
  ucs_status_t status = ucp_worker_create(context_, &params, &worker_);
  if (status != UCS_OK) return UcxError("creating a worker", status);
  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return UcxError("asking for an event descriptor", status);
  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  status = ucp_worker_get_address(worker_, &address, &address_bytes);
  if (status != UCS_OK) return UcxError("asking for the worker's address", status);
  worker_address_.assign(reinterpret_cast<const char*>(address), address_bytes);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

absl::Status UcxContext::MapPool(const KvPool& pool) {
  const auto pool_bytes = static_cast<size_t>(pool.kv.pool_bytes());
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.length = pool_bytes;
  if (pool.base == nullptr) {
    params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.flags = UCP_MEM_MAP_ALLOCATE;  // UCX picks memory that a peer can map.
  } else {
    params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
    params.address = pool.base;
  }
  ucs_status_t status = ucp_mem_map(context_, &params, &memory_);
  if (status != UCS_OK) {
    return absl::ResourceExhaustedError(absl::StrFormat("UCX cannot map a KV pool of %d bytes: %s",
                                                        pool_bytes, ucs_status_string(status)));
  }
  ucp_mem_attr_t attributes = {};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  status = ucp_mem_query(memory_, &attributes);
  if (status != UCS_OK) return UcxError("asking where the pool lies", status);
  pool_ = pool;
  pool_.base = static_cast<std::byte*>(attributes.address);
  pool_address_ = reinterpret_cast<uint64_t>(attributes.address);
  if (pool.base == nullptr) {
    SeePoolInHugePages(pool_bytes);
    // Faults the pages in now: the first pass over a mapping costs two to three times a later one.
    std::memset(pool_.base, 0, pool_bytes);
  }

  void* key = nullptr;
  size_t key_bytes = 0;
  status = ucp_rkey_pack(context_, memory_, &key, &key_bytes);
  if (status != UCS_OK) return UcxError("packing the pool's key", status);
  pool_key_.assign(static_cast<const char*>(key), key_bytes);
  ucp_rkey_buffer_release(key);
  return absl::OkStatus();
}

// No peer is told its key: what they write to are slots.
absl::Status UcxContext::MapDevicePool(const KvPool& pool) {
  pool_ = pool;
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = ForUcx(pool.base);
  params.length = static_cast<size_t>(pool.kv.pool_bytes());
  params.memory_type = memory_type();
  const ucs_status_t status = ucp_mem_map(context_, &params, &memory_);
  if (status == UCS_OK) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("UCX cannot map a KV pool of %d bytes of %s memory: %s", params.length,
                      ucs_memory_type_names[params.memory_type], ucs_status_string(status)));
}

absl::StatusOr<std::byte*> UcxContext::Allocate(size_t size_bytes) {
  constexpr uintptr_t kCopierAlignment = 64;
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.length = size_bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  params.memory_type = memory_type();
  ucp_mem_h memory = nullptr;
  ucp_mem_attr_t attributes = {};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  ucs_status_t status = ucp_mem_map(context_, &params, &memory);
  if (status == UCS_OK) {
    allocated_.push_back(memory);
    status = ucp_mem_query(memory, &attributes);
  }
  if (status != UCS_OK) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "UCX cannot allocate %d bytes of %s memory for blocks on their way: %s", size_bytes,
        ucs_memory_type_names[params.memory_type], ucs_status_string(status)));
  }
  if (reinterpret_cast<uintptr_t>(attributes.address) % kCopierAlignment != 0) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "UCX allocates %d bytes that are not aligned to %d", size_bytes, kCopierAlignment));
  }
  return ForUcx(static_cast<std::byte*>(attributes.address));
}

ucs_memory_type_t UcxContext::memory_type() const { return TypeOf(ucx_memory_); }

void UcxContext::SeePoolInHugePages(size_t pool_bytes) {
  absl::StatusOr<HugeView> view = HugeView::Of(pool_.base, pool_bytes);
  absl::Status huge = view.status();
  if (view.ok()) {
    view_ = *std::move(view);
    pool_.base = view_.data();
    huge = view_.Collapse();
  }
  if (huge.ok()) return;
  LogWarning("the KV pool has pages of 4 KiB, and is read at down to 0.7 of the speed",
             {{"bytes", pool_bytes}, {"why", huge.ToString()}});
}

void UcxContext::CloseWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
}

UcxContext::~UcxContext() {
  CloseWorker();
  for (const ucp_mem_h memory : allocated_) ucp_mem_unmap(context_, memory);
  if (memory_ != nullptr) ucp_mem_unmap(context_, memory_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

}  // namespace tandem
