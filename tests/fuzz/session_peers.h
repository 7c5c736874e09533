// Peers of every kind that say whatever comes to their mind: what is right, late, repeated, out of
// order, damaged or hostile. For fuzzing whole sessions of workers and routers.

#ifndef TANDEM_TESTS_FUZZ_SESSION_PEERS_H_
#define TANDEM_TESTS_FUZZ_SESSION_PEERS_H_

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/random.h"
#include "runtime/protocol/router_messages.h"

namespace tandem {

// How every connection of these peers is made.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address);

// Puts an extreme or a random value into a random field, at any depth, or takes it away.
void Perturb(google::protobuf::Message* message, Random* random);

// What a worker registers as; Unavailable if nothing of the kind comes.
absl::StatusOr<WorkerRegistration> RegistrationOf(const std::string& address);

// Messages that may still be sent, shared by all peers.
class MessageBudget {
 public:
  explicit MessageBudget(int64_t messages) : left_(messages), all_(messages) {}
  bool Take() { return left_.fetch_sub(1) > 0; }
  bool spent() const { return left_ <= 0; }
  int64_t sent() const { return all_ - std::max<int64_t>(left_, 0); }

 private:
  std::atomic<int64_t> left_;
  const int64_t all_;
};

// A prefill worker that worker `of` is told to dial.
class HostilePrefill {
 public:
  HostilePrefill(const WorkerRegistration& of, uint64_t seed, MessageBudget* budget);
  ~HostilePrefill();
  PrefillPeer peer() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A worker as a router sees it. Serves until it is destroyed.
class HostileWorker {
 public:
  HostileWorker(int port, const WorkerRegistration& like, uint64_t seed, MessageBudget* budget);
  ~HostileWorker();
  int port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// These two run until the budget is spent. False: the worker could not be reached at all.
bool ActAsRouter(const std::string& address, const WorkerRegistration& of,
                 const PrefillPeer& hostile, uint64_t seed, MessageBudget* budget);
bool ActAsDecodeWorker(const std::string& address, const WorkerRegistration& of, uint64_t seed,
                       MessageBudget* budget);

// Sends the router at this port requests, some of which it leaves, until the budget is spent.
void ActAsClient(int http_port, uint64_t seed, MessageBudget* budget);

// Attacks one worker from all sides: as its routers, its decode workers and its prefill worker.
// Empty, or what CheckWorkerAtRest finds afterwards.
std::string FuzzWorker(const std::string& address, uint64_t seed, MessageBudget* budget);

// Empty if the worker comes to rest, has all its blocks back and then answers a request; otherwise
// what is wrong.
std::string CheckWorkerAtRest(const std::string& address, const WorkerRegistration& of);

}  // namespace tandem

#endif  // TANDEM_TESTS_FUZZ_SESSION_PEERS_H_
