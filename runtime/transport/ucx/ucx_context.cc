#include "runtime/transport/ucx/ucx_context.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace tandem {

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

}  // namespace

absl::Status UcxError(const std::string& what, ucs_status_t status) {
  return absl::UnavailableError(absl::StrCat("UCX: ", what, ": ", ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(const UcxOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckHostPool("ucx", options.pool));
  const bool allocates = options.pool.base == nullptr;
  if (options.shared_memory && !allocates) {
    return absl::FailedPreconditionError(
        "peers of one host map the KV pool that UCX allocates: it cannot lie elsewhere");
  }
  if (!options.shared_memory && options.devices.empty()) {
    return absl::InvalidArgumentError("UCX without shared memory needs devices");
  }
  // First of all: it makes room.
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ShmFolder> folder, ShmFolder::Create());
  if (allocates) TANDEM_RETURN_IF_ERROR(CheckSharedMemory(options.pool.kv.pool_bytes()));

  std::unique_ptr<UcxContext> context(new UcxContext(std::move(folder)));
  // Memory domains take their settings from the environment alone, when the context is made.
  setenv("UCX_POSIX_DIR", context->folder_->path().c_str(), /*overwrite=*/1);
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return UcxError("reading its configuration", status);
  }
  // Without CMA, which UCX would prefer and which halves the speed (docs/design.md).
  std::string transports = "posix,self";
  if (!options.devices.empty())
    transports = options.shared_memory ? "^cma,sysv" : "^cma,sysv,posix";
  ucs_status_t status = ucp_config_modify(config, "TLS", transports.c_str());
  if (status == UCS_OK && !options.devices.empty()) {
    status = ucp_config_modify(config, "NET_DEVICES", options.devices.c_str());
  }
  // What a killed peer must not be able to break in UCX 1.13 (README.md).
  const std::pair<const char*, const char*> settings[] = {
      {"RNDV_THRESH", "inf"}, {"ZCOPY_THRESH", "inf"}, {"KEEPALIVE_INTERVAL", "inf"}};
  for (const auto& [name, value] : settings) {
    if (status == UCS_OK) status = ucp_config_modify(config, name, value);
  }

  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  params.name = "tandem";
  if (status == UCS_OK) status = ucp_init(&params, config, &context->context_);
  ucp_config_release(config);
  if (status != UCS_OK) {
    return absl::FailedPreconditionError(absl::StrCat("UCX cannot use \"", transports,
                                                      "\" on devices \"", options.devices,
                                                      "\": ", ucs_status_string(status)));
  }
  TANDEM_RETURN_IF_ERROR(context->OpenWorker());
  TANDEM_RETURN_IF_ERROR(context->MapPool(options.pool));
  return context;
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
  if (memory_ != nullptr) ucp_mem_unmap(context_, memory_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

}  // namespace tandem
