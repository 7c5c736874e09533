// Methods that begin with one message of the client's, whose calls begin at their headers, so that
// OpenCalls bounds them while they wait for it. All are served as methods that stream both ways:
// what the .proto file declares looks the same on the wire.

#ifndef TANDEM_SERVICES_SERVER_EARLY_REACTOR_H_
#define TANDEM_SERVICES_SERVER_EARLY_REACTOR_H_

#include <google/protobuf/empty.pb.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"
#include "services/server/open_calls.h"
#include "services/server/status_proto.h"
#include "services/server/wire_message.h"

namespace tandem {

// What serves a call of ours. It is given bytes, to be measured before they are parsed
// (wire_message.h).
template <typename Response>
using ServerReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, Response>;

// Its own OnDone, the last call, destroys it.
template <typename Request, typename Response>
class EarlyReactor : public ServerReactor<Response> {
 public:
  EarlyReactor(OpenCalls* calls, grpc::CallbackServerContext* context)
      : context_(context),
        max_message_bytes_(calls->max_message_bytes()),
        call_(
            calls, context->peer(), [this] { this->StartRead(&wire_); },
            [context] { context->TryCancel(); }) {}

  // Once, by whoever makes it: OnRequest() comes, or the call ends without it.
  void AwaitRequest() {
    if (const absl::Status status = call_.AwaitMessage(); !status.ok()) Refuse(status);
  }
  // Instead of AwaitRequest().
  void Refuse(const absl::Status& why) {
    call_.Refuse();
    if (!finished_.exchange(true)) Base::Finish(ToGrpcStatus(why));
  }

  void OnReadDone(bool ok) final {
    if (hears_) return HearWord(ok);
    if (!call_.Settle()) return;
    if (!ok) return OnEnd();
    const auto received = std::make_shared<Received>();
    if (const absl::Status status = Receive(received.get()); !status.ok()) {
      return Finish(ToGrpcStatus(status));
    }
    OnRequest({received, &received->message});
  }

  // For Write(): who writes otherwise overrides this.
  void OnWriteDone(bool ok) override {
    call_.EndWrite();
    OnWritten(ok);
  }

  // Perhaps before OnRequest, or during it.
  void OnCancel() override {
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
  }

  // Instead of gRPC's: does nothing after the first time. Any thread.
  void Finish(const grpc::Status& status) {
    if (finished_.exchange(true)) return;
    call_.Settle();
    call_.BeginWrite();
    Base::Finish(status);
  }

 protected:
  // The client's message, which is charged to it for as long as somebody keeps it.
  virtual void OnRequest(std::shared_ptr<const Request> request) = 0;
  // The client sends no message any more.
  virtual void OnEnd() {
    Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the call ended without its message"));
  }
  // After OnRequest, of a method that takes several: it comes once more, as above.
  void AwaitAnother() {
    if (const absl::Status status = call_.AwaitAnother(); !status.ok()) {
      Finish(ToGrpcStatus(status));
    }
  }
  // After OnRequest, of a method whose client may say empty messages at any time, or never: OnWord
  // comes for each; another message ends the call. One is received without a charge, so this is for
  // clients that have named what only a peer knows.
  void HearWords() {
    hears_ = true;
    this->StartRead(&wire_);
  }
  virtual void OnWord() {}

  grpc::CallbackServerContext* context() { return context_; }

  // With the call's one answer, which lives as long as this. Once the message has come.
  void FinishWith(const Response* response) {
    if (finished_.exchange(true)) return;
    call_.BeginWrite();
    this->StartWriteAndFinish(response, grpc::WriteOptions(), grpc::Status::OK);
  }
  // One at a time, of several answers; `response` lives until OnWritten(). It has the time of a
  // write and may be cut until then, as the client's reading could hold it up.
  void Write(const Response* response) {
    call_.BeginWrite();
    this->StartWrite(response);
  }
  // What Write() began has ended. Not `ok`: nothing more can be written.
  virtual void OnWritten(bool /*ok*/) {}
  // After OnWritten(): nothing is owed to the client, which gives way to others' memory.
  void AwaitEvent() { call_.AwaitEvent(); }

 private:
  using Base = ServerReactor<Response>;
  struct Received {
    Request message;
    std::shared_ptr<MemoryBudget::Holding> holding;
  };

  void HearWord(bool ok) {
    if (!ok) return;
    if (wire_.Length() > 0) return context_->TryCancel();  // OnCancel comes, as if it had left.
    OnWord();
    this->StartRead(&wire_);
  }
  // Measured, charged, and only then parsed.
  absl::Status Receive(Received* received) {
    const auto size = static_cast<int64_t>(wire_.Length());
    if (size > max_message_bytes_) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "a message of %d bytes, at most %d are allowed", size, max_message_bytes_));
    }
    TANDEM_ASSIGN_OR_RETURN(const int64_t bytes, ParsedBytes(wire_, *Request::descriptor()));
    TANDEM_ASSIGN_OR_RETURN(received->holding, call_.Keep(bytes));
    return ParseMessage(&wire_, &received->message);
  }

  grpc::CallbackServerContext* const context_;
  const int64_t max_message_bytes_;
  grpc::ByteBuffer wire_;
  bool hears_ = false;  // Set before its first read.
  std::atomic<bool> finished_{false};
  OpenCalls::Call call_;  // Goes first: nothing calls here any more.
};

// A unary method that answers at once.
template <typename Request, typename Response>
class EarlyUnary final : public EarlyReactor<Request, Response> {
 public:
  using Answer = std::function<absl::Status(const Request&, Response*)>;

  EarlyUnary(OpenCalls* calls, grpc::CallbackServerContext* context, Answer answer)
      : EarlyReactor<Request, Response>(calls, context), answer_(std::move(answer)) {
    this->AwaitRequest();
  }
  static auto Make(OpenCalls* calls, Answer answer) {
    return [calls, answer = std::move(answer)](grpc::CallbackServerContext* context) {
      return new EarlyUnary(calls, context, answer);
    };
  }

  void OnDone() override { delete this; }

 private:
  void OnRequest(std::shared_ptr<const Request> request) override {
    if (const absl::Status status = answer_(*request, &response_); !status.ok()) {
      return this->Finish(ToGrpcStatus(status));
    }
    this->FinishWith(&response_);
  }

  const Answer answer_;
  Response response_;
};

// A call that ends before it begins.
template <typename Response>
class RefusedCall final : public EarlyReactor<google::protobuf::Empty, Response> {
 public:
  RefusedCall(OpenCalls* calls, grpc::CallbackServerContext* context, const absl::Status& why)
      : EarlyReactor<google::protobuf::Empty, Response>(calls, context) {
    this->Refuse(why);
  }

  void OnDone() override { delete this; }

 private:
  void OnRequest(std::shared_ptr<const google::protobuf::Empty>) override {}
};

// Ends calls of methods that a server does not have: nobody else would bound how many wait for
// their client to read that.
class UnknownMethods final : public grpc::CallbackGenericService {
 public:
  explicit UnknownMethods(OpenCalls* calls) : calls_(calls) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new RefusedCall<grpc::ByteBuffer>(calls_, context,
                                             absl::UnimplementedError("no method of this name"));
  }

 private:
  OpenCalls* const calls_;
};

// Who may call a method: not OK ends the call at its headers.
using Admission =
    std::function<absl::Status(grpc::CallbackServerContext*, std::string_view method)>;

// A service whose methods begin at their headers, added by its constructor.
class EarlyService : public grpc::Service {
 protected:
  // `admission`: null: everybody is admitted.
  explicit EarlyService(OpenCalls* calls, Admission admission = nullptr)
      : calls_(calls), admission_(std::move(admission)) {}

  // `name` is a literal, "/package.Service/Method". `make` makes the reactor of a call.
  template <typename Response>
  void AddMethod(const char* name,
                 std::function<ServerReactor<Response>*(grpc::CallbackServerContext*)> make) {
    grpc::Service::AddMethod(new grpc::internal::RpcServiceMethod(
        name, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    const auto admitted = [this, name, make = std::move(make)](
                              grpc::CallbackServerContext* context) -> ServerReactor<Response>* {
      const absl::Status status =
          admission_ == nullptr ? absl::OkStatus() : admission_(context, name);
      if (status.ok()) return make(context);
      return new RefusedCall<Response>(calls_, context, status);
    };
    MarkMethodCallback(
        num_methods_++,
        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, Response>(admitted));
  }
  template <typename Request, typename Response>
  void AddUnary(const char* name, typename EarlyUnary<Request, Response>::Answer answer) {
    AddMethod<Response>(name, EarlyUnary<Request, Response>::Make(calls_, answer));
  }
  OpenCalls* calls() const { return calls_; }

 private:
  OpenCalls* const calls_;
  const Admission admission_;
  int num_methods_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_EARLY_REACTOR_H_
