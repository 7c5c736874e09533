// The session of a decode worker with a worker, by hand.

#ifndef TANDEM_TESTS_SUPPORT_DECODE_PEER_H_
#define TANDEM_TESTS_SUPPORT_DECODE_PEER_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <variant>

#include "services/server/convert.h"
#include "tandem/v1/prefill.grpc.pb.h"
#include "tests/support/test_worker.h"

namespace tandem {

// `asked`, as a decode worker hands it on that holds none of it.
inline PrefillSubmit PrefillSubmitOf(const Submit& asked) {
  PrefillSubmit submit;
  submit.job = 1;
  submit.attempt = asked.attempt;
  submit.spec = asked.spec;
  submit.num_blocks = (asked.spec.prompt_tokens + 15) / 16;
  return submit;
}

class DecodePeer {
 public:
  // A peer of a worker with the transport "grpc". Has been greeted when it is made.
  DecodePeer(const TestWorker& worker, const std::shared_ptr<grpc::Channel>& channel)
      : stub_(proto::Prefill::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream_ = stub_->Session(&context_);
    PrefillHello hello{
        .terms = {.kv_class = "class", .numerics_id = "numerics", .transport = "grpc"},
        .worker = {.name = "peer", .incarnation = 5},
        .expected = worker.id,
        .transport_address = std::string(16, 't')};
    proto::ToPrefill message;
    ToProto(hello, message.mutable_hello());
    EXPECT_TRUE(stream_->Write(message));
    proto::ToDecode answer;
    EXPECT_TRUE(stream_->Read(&answer) && answer.has_hello());
  }
  ~DecodePeer() {
    context_.TryCancel();
    stream_->Finish();
  }
  void Send(const DecodeToPrefill& in) {
    proto::ToPrefill message;
    ToProto(in, &message);
    EXPECT_TRUE(stream_->Write(message));
  }
  // Reads until a prompt is refused, or the session ends: then its status is OK.
  PrefillRefused Refusal() {
    PrefillRefused refused;
    Read(&refused);
    return refused;
  }
  // Reads until a prompt is started: a Grant before that would be ignored.
  bool Started() {
    Start start;
    return Read(&start);
  }
  void HalfClose() { stream_->WritesDone(); }

 private:
  // Reads until a message of that kind. False: the session has ended.
  template <typename Message>
  bool Read(Message* wanted) {
    proto::ToDecode message;
    while (stream_->Read(&message)) {
      const auto said = FromProto(message);
      EXPECT_TRUE(said.ok()) << said.status();
      if (!said.ok()) return false;
      if (const auto* found = std::get_if<Message>(&*said)) {
        *wanted = *found;
        return true;
      }
    }
    return false;
  }

  const std::unique_ptr<proto::Prefill::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::ToPrefill, proto::ToDecode>> stream_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_DECODE_PEER_H_
