#include "services/server/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/mutex.h"
#include "services/server/gated_calls.h"

namespace tandem {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

namespace {

constexpr size_t kMaxRequestBytes = 4096;  // Names.

// With what it imports.
void AddFile(const FileDescriptor* file, std::set<const FileDescriptor*>* added,
             ServerReflectionResponse* response) {
  if (!added->insert(file).second) return;
  google::protobuf::FileDescriptorProto description;
  file->CopyTo(&description);
  response->mutable_file_descriptor_response()->add_file_descriptor_proto(
      description.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) {
    AddFile(file->dependency(i), added, response);
  }
}

void Describe(const FileDescriptor* file, const std::string& name,
              ServerReflectionResponse* response) {
  if (file == nullptr) {
    response->mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
    response->mutable_error_response()->set_error_message(absl::StrCat("nothing here is ", name));
    return;
  }
  std::set<const FileDescriptor*> added;
  AddFile(file, &added, response);
}

}  // namespace

ServerReflectionResponse AnswerReflection(const std::vector<std::string>& services,
                                          const ServerReflectionRequest& request) {
  const DescriptorPool* const pool = DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      Describe(pool->FindFileByName(request.file_by_filename()), request.file_by_filename(),
               &response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      Describe(pool->FindFileContainingSymbol(request.file_containing_symbol()),
               request.file_containing_symbol(), &response);
      break;
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : services) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case ServerReflectionRequest::kFileContainingExtension:
      Describe(nullptr, "an extension", &response);
      break;
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      Describe(nullptr, "an extended type", &response);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response.mutable_error_response()->set_error_message("nothing is asked");
      break;
  }
  return response;
}

// Answers one request after the other.
class ReflectionService::Stream final
    : public EarlyReactor<ServerReflectionRequest, ServerReflectionResponse> {
 public:
  Stream(const ReflectionService* service, OpenCalls* calls, grpc::CallbackServerContext* context)
      : EarlyReactor(calls, context), service_(service), calls_(calls) {
    AwaitRequest();
  }

  // Not between the end of a write and the wait for another request.
  void OnCancel() override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    ended_ = true;
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  void OnRequest(std::shared_ptr<const ServerReflectionRequest> request) override {
    if (request->ByteSizeLong() > kMaxRequestBytes) {
      return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                 absl::StrCat("a request of ", request->ByteSizeLong(),
                                              " bytes; at most ", kMaxRequestBytes)));
    }
    response_ = AnswerReflection(service_->services_, *request);
    // gRPC has it once more while the client reads.
    auto holding = calls_->budget()->Hold(ClientOfCall(context()->peer()),
                                          2 * static_cast<int64_t>(response_.ByteSizeLong()));
    if (!holding.ok()) return Finish(ToGrpcStatus(holding.status()));
    holding_ = *std::move(holding);
    Write(&response_);
  }
  void OnWritten(bool ok) override EXCLUDES(mu_) {
    holding_.reset();
    MutexLock lock(&mu_);
    if (ok && !ended_) AwaitAnother();
  }
  void OnEnd() override { Finish(grpc::Status::OK); }

  const ReflectionService* const service_;
  OpenCalls* const calls_;
  ServerReflectionResponse response_;
  std::shared_ptr<MemoryBudget::Holding> holding_;  // While it is written.
  Mutex mu_;
  bool ended_ GUARDED_BY(mu_) = false;
};

ReflectionService::ReflectionService(std::vector<std::string> services, OpenCalls* calls,
                                     Admission admission)
    : EarlyService(calls, std::move(admission)), services_(std::move(services)) {
  services_.emplace_back("grpc.reflection.v1alpha.ServerReflection");
  AddMethod<ServerReflectionResponse>(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      [this, calls](grpc::CallbackServerContext* context) {
        return new Stream(this, calls, context);
      });
}

}  // namespace tandem
