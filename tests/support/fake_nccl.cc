#include "tests/support/fake_nccl.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/entropy.h"
#include "tests/support/kv_side.h"

namespace tandem {

// Runs what all of a GPU's streams have enqueued, one after the other.
class FakeNccl::Gpu {
 public:
  ~Gpu() {
    Enqueue(nullptr);
    thread_.join();
  }
  void Enqueue(std::function<void()> work) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    queue_.push_back(std::move(work));
    changed_.SignalAll();
  }
  // Until all of it has ended.
  void Wait() {
    std::promise<void> ended;
    Enqueue([&ended] { ended.set_value(); });
    ended.get_future().wait();
  }

 private:
  void Run() EXCLUDES(mu_) {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(&mu_);
        while (queue_.empty()) changed_.Wait(&mu_);
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (work == nullptr) return;
      work();
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mu_);
  std::thread thread_{[this] { Run(); }};
};

}  // namespace tandem

struct CUstream_st {};

struct CUevent_st {
  std::atomic<bool> passed{true};
};

struct ncclComm {
  std::shared_ptr<tandem::FakeNccl::Pair> pair;
};

namespace tandem {
namespace {

constexpr int kIdBytes = 16;

// What a thread has said since GroupStart.
struct Group {
  bool open = false;
  NcclComm comm = nullptr;
  NcclStream stream = nullptr;
  bool out = false;
  bool hangs = false;
  bool failed = false;    // A call was, and none of the group is made.
  size_t size_bytes = 0;  // of each
  std::vector<std::byte*> blocks;
};
thread_local Group this_threads_group;

std::chrono::steady_clock::time_point PatienceEnds() {
  return std::chrono::steady_clock::now() + kPatience;
}

// A socket that has no file.
sockaddr_un AddressOf(const std::string& id, socklen_t* size) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = "fake-nccl-" + id;  // After a zero.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

}  // namespace

class FakeNccl::Pair {
 public:
  // `listening`: rank 0's socket, which is this one's from now on; rank 1 connects.
  Pair(int rank, int listening)
      : rank_(rank), listening_(listening), wake_(eventfd(0, EFD_CLOEXEC)) {}
  ~Pair() {
    if (socket_ >= 0) close(socket_);
    if (listening_ >= 0) close(listening_);
    close(wake_);
  }

  // On a thread of its own.
  void Join(const std::string& id, std::function<void()> wait_for_gpu) {
    joining_ = std::thread([this, id, wait_for_gpu] {
      if (rank_ == 0) {
        if (!Ready(listening_, POLLIN)) return;
        socket_ = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      } else {
        socklen_t size = 0;
        const sockaddr_un address = AddressOf(id, &size);
        socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
          return SetState(NcclResult::kSystemError);
        }
      }
      uint64_t word = 1;
      if (Move(&word, sizeof(word), /*out=*/true) && Move(&word, sizeof(word), /*out=*/false)) {
        wait_for_gpu();
        SetState(NcclResult::kSuccess);
      }
    });
  }

  // On a stream. The peer's group fits, or this one has no end.
  void Transfer(const std::vector<std::byte*>& blocks, size_t size_bytes, bool out) {
    {
      MutexLock lock(&mu_);
      if (aborted_) return;
      moving_ = true;
    }
    const std::array<uint64_t, 2> wanted = {size_bytes, blocks.size()};
    std::array<uint64_t, 2> said = wanted;
    // The receiver says that it is there, and for how much.
    if (Move(said.data(), sizeof(said), !out)) {
      if (said != wanted) {
        SetState(NcclResult::kInvalidUsage);
        Ready(-1, 0);
      } else {
        for (std::byte* const block : blocks) {
          if (!Move(FarMemory::Across(block), size_bytes, out)) break;
        }
      }
    }
    MutexLock lock(&mu_);
    moving_ = false;
    changed_.SignalAll();
  }

  void Abort() {
    const uint64_t one = 1;
    {
      MutexLock lock(&mu_);
      aborted_ = true;
      begin_ = nullptr;  // It holds this.
    }
    EXPECT_EQ(write(wake_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
    if (joining_.joinable()) joining_.join();
    MutexLock lock(&mu_);
    while (moving_) changed_.Wait(&mu_);
  }

  // Its next state; what is in progress needs to be asked for twice.
  NcclResult Ask() {
    std::function<void()> begin;
    {
      MutexLock lock(&mu_);
      if (begin_ != nullptr && --asks_left_ == 0) {
        begin = std::exchange(begin_, nullptr);
        state_ = NcclResult::kSuccess;
      }
    }
    if (begin != nullptr) begin();
    return state();
  }
  // Begins when it is asked for, or now.
  NcclResult Begin(std::function<void()> begin, bool hangs) {
    {
      MutexLock lock(&mu_);
      // The manual: no other call before the one in progress has ended.
      EXPECT_EQ(state_, NcclResult::kSuccess) << "called while in progress, or broken";
      if (state_ != NcclResult::kSuccess) return NcclResult::kInvalidUsage;
      if (hangs || ++begun_ % 2 == 0) {
        state_ = NcclResult::kInProgress;
        if (hangs) return state_;
        begin_ = std::move(begin);
        asks_left_ = 2;
        return state_;
      }
    }
    begin();
    return NcclResult::kSuccess;
  }
  NcclResult state() {
    MutexLock lock(&mu_);
    return state_;
  }
  int rank() const { return rank_; }

 private:
  void SetState(NcclResult state) {
    MutexLock lock(&mu_);
    state_ = state;
  }
  // False once aborted.
  bool Ready(int fd, short events) {
    while (true) {
      pollfd polled[] = {{.fd = fd, .events = events, .revents = 0},
                         {.fd = wake_, .events = POLLIN, .revents = 0}};
      if (poll(polled, 2, -1) < 0 && errno != EINTR) return false;
      if (polled[1].revents != 0) return false;
      if (polled[0].revents != 0) return true;
    }
  }
  bool Move(void* memory, size_t size_bytes, bool out) {
    auto* at = static_cast<char*>(memory);
    while (size_bytes > 0) {
      if (!Ready(socket_, out ? POLLOUT : POLLIN)) return false;
      const ssize_t moved = out ? send(socket_, at, size_bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                                : recv(socket_, at, size_bytes, MSG_DONTWAIT);
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (moved <= 0) {
        Ready(-1, 0);  // The peer has gone.
        return false;
      }
      at += moved;
      size_bytes -= static_cast<size_t>(moved);
    }
    return true;
  }

  const int rank_;
  const int listening_;
  const int wake_;  // Readable once aborted.
  int socket_ = -1;
  std::thread joining_;
  Mutex mu_;
  CondVar changed_;
  NcclResult state_ GUARDED_BY(mu_) = NcclResult::kInProgress;
  bool aborted_ GUARDED_BY(mu_) = false;
  bool moving_ GUARDED_BY(mu_) = false;
  std::function<void()> begin_ GUARDED_BY(mu_);  // In progress.
  int asks_left_ GUARDED_BY(mu_) = 0;
  int64_t begun_ GUARDED_BY(mu_) = 0;
};

FakeNccl::FakeNccl() : gpu_(std::make_unique<Gpu>()) {}

FakeNccl::~FakeNccl() {
  MutexLock lock(&mu_);
  EXPECT_EQ(num_comms_, 0) << "communicators that nobody has aborted";
  EXPECT_EQ(num_others_, 0) << "streams, events or memory that nobody has given back";
  for (const auto& [id, fd] : listening_) close(fd);
}

bool FakeNccl::Fails(Call call) {
  MutexLock lock(&mu_);
  const int64_t number = ++calls_[call];
  changed_.SignalAll();
  const auto failing = failing_.find(call);
  if (failing == failing_.end() || failing->second != number) return false;
  failing_.erase(failing);
  return true;
}

bool FakeNccl::Hangs(Call call) {
  MutexLock lock(&mu_);
  return hanging_.contains(call);
}

void FakeNccl::Fail(Call call, int number) {
  MutexLock lock(&mu_);
  failing_[call] = calls_[call] + number;
}

void FakeNccl::Hang(Call call) {
  MutexLock lock(&mu_);
  hanging_.insert(call);
}

void FakeNccl::Release() {
  MutexLock lock(&mu_);
  hanging_.clear();
  changed_.SignalAll();
}

void FakeNccl::Hold(bool hold) {
  MutexLock lock(&mu_);
  holds_ = hold;
  changed_.SignalAll();
}

void FakeNccl::WaitWhileHeld() {
  MutexLock lock(&mu_);
  while (holds_) changed_.Wait(&mu_);
}

void FakeNccl::RepeatIds() {
  MutexLock lock(&mu_);
  repeats_ids_ = true;
}

void FakeNccl::Break(NcclResult state) {
  MutexLock lock(&mu_);
  broken_ = state;
}

int64_t FakeNccl::calls(Call call) {
  MutexLock lock(&mu_);
  return calls_[call];
}

int64_t FakeNccl::num_comms() {
  MutexLock lock(&mu_);
  return num_comms_;
}

bool FakeNccl::WaitForCalls(Call call, int64_t count) {
  const auto end = PatienceEnds();
  MutexLock lock(&mu_);
  while (calls_[call] < count) {
    if (!changed_.WaitUntil(&mu_, end)) return false;
  }
  return true;
}

bool FakeNccl::WaitForFailure(Call call) {
  const auto end = PatienceEnds();
  MutexLock lock(&mu_);
  while (failing_.contains(call)) {
    if (!changed_.WaitUntil(&mu_, end)) return false;
  }
  return true;
}

bool FakeNccl::WaitForComms(int64_t count) {
  const auto end = PatienceEnds();
  MutexLock lock(&mu_);
  while (num_comms_ != count) {
    if (!changed_.WaitUntil(&mu_, end)) return false;
  }
  return true;
}

void FakeNccl::HangIfAsked(Call call) {
  MutexLock lock(&mu_);
  while (hanging_.contains(call)) changed_.Wait(&mu_);
}

NcclResult FakeNccl::GetUniqueId(NcclUniqueId* id) {
  if (Fails(Call::kGetUniqueId)) return NcclResult::kSystemError;
  HangIfAsked(Call::kGetUniqueId);
  {
    MutexLock lock(&mu_);
    if (repeats_ids_) {
      std::memset(id->internal, 'i', sizeof(id->internal));
      return NcclResult::kSuccess;
    }
  }
  const std::string name = RandomBytes(kIdBytes);
  socklen_t size = 0;
  const sockaddr_un address = AddressOf(name, &size);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 || listen(fd, 1) != 0) {
    return NcclResult::kSystemError;
  }
  std::memcpy(id->internal, name.data(), name.size());
  MutexLock lock(&mu_);
  listening_[name] = fd;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::CommInitRank(NcclComm* comm, int num_ranks, const NcclUniqueId& id, int rank) {
  *comm = nullptr;
  if (Fails(Call::kCommInitRank)) return NcclResult::kInternalError;
  EXPECT_EQ(num_ranks, 2);
  const bool hangs = Hangs(Call::kCommInitRank);
  const std::string name(id.internal, kIdBytes);
  int listening = -1;
  {
    MutexLock lock(&mu_);
    if (rank == 0) {
      const auto found = listening_.find(name);
      if (found == listening_.end()) return NcclResult::kInvalidArgument;
      listening = found->second;
      listening_.erase(found);
    }
    ++num_comms_;
  }
  *comm = new ncclComm{std::make_shared<Pair>(rank, listening)};
  if (!hangs) (*comm)->pair->Join(name, [this] { gpu_->Wait(); });
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::CommGetAsyncError(NcclComm comm, NcclResult* state) {
  if (Fails(Call::kCommGetAsyncError)) return NcclResult::kInternalError;
  *state = comm->pair->Ask();
  MutexLock lock(&mu_);
  if (broken_ != NcclResult::kSuccess) *state = broken_;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::GroupStart() {
  if (Fails(Call::kGroupStart)) return NcclResult::kInternalError;
  EXPECT_FALSE(this_threads_group.open);
  this_threads_group = {.open = true};
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::GroupEnd() {
  const bool fails = Fails(Call::kGroupEnd);
  EXPECT_TRUE(this_threads_group.open);
  Group group = std::exchange(this_threads_group, {});
  if (fails || group.failed) return NcclResult::kInternalError;
  if (group.blocks.empty()) return NcclResult::kSuccess;
  const auto move = [this, pair = group.comm->pair, group] {
    gpu_->Enqueue([this, pair, group] {
      WaitWhileHeld();
      pair->Transfer(group.blocks, group.size_bytes, group.out);
    });
  };
  return group.comm->pair->Begin(move, group.hangs);
}

NcclResult FakeNccl::Add(Call call, std::byte* memory, size_t size_bytes, int peer, NcclComm comm,
                         NcclStream stream) {
  Group& group = this_threads_group;
  if (Fails(call)) {
    group.failed = true;
    return NcclResult::kInternalError;
  }
  EXPECT_TRUE(group.open);
  EXPECT_EQ(peer, 1 - comm->pair->rank());
  if (!group.blocks.empty()) {
    EXPECT_TRUE(group.comm == comm && group.stream == stream && group.size_bytes == size_bytes);
    EXPECT_EQ(group.out, call == Call::kSend);
  }
  group.comm = comm;
  group.stream = stream;
  group.out = call == Call::kSend;
  group.hangs |= Hangs(call);
  group.size_bytes = size_bytes;
  group.blocks.push_back(memory);
  return group.blocks.size() % 2 == 0 ? NcclResult::kInProgress : NcclResult::kSuccess;
}

NcclResult FakeNccl::Send(const void* from, size_t size_bytes, int peer, NcclComm comm,
                          NcclStream stream) {
  return Add(Call::kSend, static_cast<std::byte*>(const_cast<void*>(from)), size_bytes, peer, comm,
             stream);
}

NcclResult FakeNccl::Recv(void* to, size_t size_bytes, int peer, NcclComm comm, NcclStream stream) {
  return Add(Call::kRecv, static_cast<std::byte*>(to), size_bytes, peer, comm, stream);
}

NcclResult FakeNccl::CommAbort(NcclComm comm) {
  const bool fails = Fails(Call::kCommAbort);
  HangIfAsked(Call::kCommAbort);
  comm->pair->Abort();
  delete comm;
  gpu_->Wait();
  MutexLock lock(&mu_);
  --num_comms_;
  changed_.SignalAll();
  return fails ? NcclResult::kInternalError : NcclResult::kSuccess;
}

absl::StatusOr<std::byte*> FakeNccl::Malloc(size_t size_bytes) {
  if (Fails(Call::kMalloc)) return absl::ResourceExhaustedError("no memory of the device's");
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(64, size_bytes));
  std::memset(memory, 0xFF, size_bytes);
  MutexLock lock(&mu_);
  ++num_others_;
  return FarMemory::Across(memory);
}

void FakeNccl::Free(std::byte* memory) {
  gpu_->Wait();
  std::free(FarMemory::Across(memory));
  MutexLock lock(&mu_);
  --num_others_;
}

absl::StatusOr<NcclStream> FakeNccl::StreamCreate() {
  if (Fails(Call::kStreamCreate)) return absl::InternalError("no stream");
  {
    MutexLock lock(&mu_);
    ++num_others_;
  }
  return new CUstream_st;
}

absl::Status FakeNccl::StreamSynchronize(NcclStream stream) {
  const bool fails = Fails(Call::kStreamSynchronize);
  gpu_->Wait();
  return fails ? absl::InternalError("the device has failed") : absl::OkStatus();
}

void FakeNccl::StreamDestroy(NcclStream stream) {
  delete stream;
  MutexLock lock(&mu_);
  --num_others_;
}

absl::StatusOr<NcclStreamEvent> FakeNccl::EventCreate() {
  if (Fails(Call::kEventCreate)) return absl::InternalError("no event");
  MutexLock lock(&mu_);
  ++num_others_;
  return new CUevent_st;
}

absl::Status FakeNccl::EventRecord(NcclStreamEvent event, NcclStream stream) {
  if (Fails(Call::kEventRecord)) return absl::InternalError("the event is not recorded");
  event->passed = false;
  gpu_->Enqueue([event] { event->passed = true; });
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeNccl::EventPassed(NcclStreamEvent event) {
  if (Fails(Call::kEventPassed)) return absl::InternalError("the device has failed");
  return event->passed.load();
}

void FakeNccl::EventDestroy(NcclStreamEvent event) {
  delete event;
  MutexLock lock(&mu_);
  --num_others_;
}

}  // namespace tandem
