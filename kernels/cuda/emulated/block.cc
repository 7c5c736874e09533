#include "kernels/cuda/emulated/block.h"

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/cuda/emulated/early_memory.h"
#include "kernels/cuda/emulated/fiber_switch.h"
#include "kernels/cuda/emulated/settings.h"
#include "kernels/cuda/emulated/shadow.h"
#include "kernels/cuda/emulated/warpgroup.h"
#include "kernels/support/float_environment.h"
#include "runtime/base/random.h"

namespace tandem {

thread_local emulated::Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
namespace {

namespace context = boost::context;

// Not a power of two: stacks of a block lie side by side, and would share the lines of a cache.
constexpr size_t kStackBytes = (kFramesAreGuarded ? 512 : 128) * 1024 + 17 * 64;
constexpr uint64_t kWatchedOneOf = 16;  // Closing memory takes as long as a small block.
constexpr char kTouchesEarly[] =
    "touches what is another launch's and has not waited for the launch before";

Site SiteOf(const std::string& file, unsigned line) {
  return {file.substr(file.rfind('/') + 1), line};
}

enum class State : uint8_t { kReady, kAtBarrier, kInWarp, kInPhase, kInProduct, kDone };

struct Thread {
  context::fiber fiber;
  StackBounds stack;
  State state = State::kReady;
  bool is_early = true;  // It has not waited for the launch before.
  size_t barrier = 0;    // whose phase it waits for
  Known known;           // Its own time among them; empty where there are no phases.
  std::vector<PendingCopy> uncommitted;
  std::vector<std::vector<PendingCopy>> groups;  // oldest first
  std::vector<Touch> fences;                     // when it has called FenceAsyncReads
};

class Block final : private ProductMemory {
 public:
  Block(const char* name, int threads, size_t shared_bytes, bool follows_launches, uint64_t seed)
      : name_(name),
        follows_launches_(follows_launches),
        random_(seed),
        threads_(threads),
        warps_(threads / kWarpThreads),
        shared_(TheMemory().bytes),
        words_(TheMemory().words),
        reads_(TheMemory().reads),
        epoch_(TheMemory().epoch),
        block_(++epoch_) {
    shared_.assign(shared_bytes, std::byte{0xFF});
    words_.resize((shared_bytes + kWordBytes - 1) / kWordBytes);
    Settings& settings = TheSettings();
    const std::scoped_lock lock(settings.mutex);
    left_out_ = settings.left_out;
    by_halves_ = settings.warpgroups_sum_by_halves;
    watches_early_ = follows_launches && settings.watches_early_threads &&
                     (blockIdx.x == 0 || random_.Below(kWatchedOneOf) == 0);
  }
  ~Block() override {
    Settings& settings = TheSettings();
    const std::scoped_lock lock(settings.mutex);
    for (const auto& [file, line] : sites_) settings.sites.insert(SiteOf(file, line));
    for (const auto& [file, line] : launch_waits_) {
      settings.launch_waits.insert(SiteOf(file, line));
    }
  }

  bool Run(const std::function<void()>& kernel);

  size_t shared_bytes() const { return shared_.size(); }

  void WaitForLaunchBefore(const std::source_location& at) {
    has_waited_ = true;
    launch_waits_.insert({at.file_name(), at.line()});
    if (IsLeftOutNow(at)) return;
    threads_[current_].is_early = false;
    if (watches_early_) Pause(State::kReady);
  }

  void Barrier(const std::source_location& at) {
    if (IsLeftOut(at)) return;
    Pause(State::kAtBarrier);
  }

  void WarpBarrier(const std::source_location& at) {
    if (IsLeftOut(at)) return;
    Meet(/*orders_memory=*/true);
  }

  void Exchange(const void* mine, size_t bytes, void* all) {
    Warp& warp = WarpOf(current_);
    auto& slots = warp.slots[warp.meetings % 2];
    std::memcpy(slots.data() + LaneOf(current_) * bytes, mine, bytes);
    Meet(/*orders_memory=*/false);
    std::memcpy(all, slots.data(), kWarpThreads * bytes);
  }

  void Read(size_t offset, void* to, size_t bytes) {
    CheckBounds("reads", offset, bytes);
    for (size_t word = offset / kWordBytes; word * kWordBytes < offset + bytes; ++word) {
      Word& shadow = WordAt(word);
      if (!shadow.written) Fault("reads what nobody wrote", word * kWordBytes);
      CheckLanded(shadow, word);
      CheckOrdered(shadow.write, "reads what another thread writes", word);
      Note(word);
    }
    std::memcpy(to, shared_.data() + offset, bytes);
  }

  void Write(size_t offset, const void* from, size_t bytes) {
    CheckBounds("writes", offset, bytes);
    TakeForWriting(offset, bytes);
    std::memcpy(shared_.data() + offset, from, bytes);
  }

  void Add(size_t offset, uint64_t value) {
    CheckBounds("adds to", offset, sizeof(value));
    for (size_t word = offset / kWordBytes; word * kWordBytes < offset + sizeof(value); ++word) {
      Word& shadow = WordAt(word);
      if (!shadow.written) Fault("adds to what nobody wrote", word * kWordBytes);
      CheckLanded(shadow, word);
      if (!shadow.write.adds) {
        CheckOrdered(shadow.write, "adds to what another thread writes", word);
      }
      CheckReads(word, "adds to what another thread reads");
      const int warp = current_ / kWarpThreads;
      const bool together = shadow.write.adds && shadow.write.block_epoch == epoch_;
      shadow.write = {.thread = together && shadow.write.thread != current_ ? kMany : current_,
                      .warp = together && shadow.write.warp != warp ? kMany : warp,
                      .block_epoch = epoch_,
                      .warp_epoch = WarpOf(current_).epoch,
                      .time = Time(),
                      .adds = true};
    }
    uint64_t sum;
    std::memcpy(&sum, shared_.data() + offset, sizeof(sum));
    sum += value;
    std::memcpy(shared_.data() + offset, &sum, sizeof(sum));
  }

  void CopyAsync(size_t offset, const void* from, size_t bytes, size_t there) {
    Begin(offset, from, bytes);
    threads_[current_].uncommitted.push_back({current_, Time(), offset, from, bytes, there});
  }

  void CommitCopies() {
    Thread& thread = threads_[current_];
    thread.groups.push_back(std::exchange(thread.uncommitted, {}));
  }

  void WaitForCopies(int pending, const std::source_location& at) {
    if (IsLeftOut(at)) return;
    auto& groups = threads_[current_].groups;
    const auto end = groups.begin() + std::max<int64_t>(std::ssize(groups) - pending, 0);
    for (auto group = groups.begin(); group != end; ++group) {
      for (const PendingCopy& copy : *group) Land(copy);
    }
    groups.erase(groups.begin(), end);
  }

  void InitPhases(size_t barrier, int arrivals) {
    constexpr size_t kBarrierBytes = 8;
    CheckBounds("has a barrier at", barrier, kBarrierBytes);
    if (!has_phases_) {
      has_phases_ = true;
      reads_.resize(std::max(reads_.size(), words_.size() * warps_.size()));
      for (size_t i = 0; i < threads_.size(); ++i) {
        threads_[i].known.assign(threads_.size(), 0);
        threads_[i].known[i] = 1;
      }
    }
    for (size_t at = barrier; at < barrier + kBarrierBytes; at += kWordBytes) {
      WordAt(at / kWordBytes).in_flight = kMany;  // Nobody has business there.
    }
    phases_[barrier] = {.arrivals = arrivals,
                        .awaited = arrivals,
                        .copies = {},
                        .arrived = Known(threads_.size()),
                        .at_end = Known(threads_.size())};
  }

  void CopyInPhase(size_t offset, const void* from, size_t bytes, size_t barrier) {
    Phases& phases = PhasesAt(barrier);
    Begin(offset, from, bytes);
    phases.copies.push_back({current_, Time(), offset, from, bytes, bytes});
  }

  void MoveCopiesToPhase(size_t barrier) {
    Phases& phases = PhasesAt(barrier);
    std::vector<PendingCopy>& copies = threads_[current_].uncommitted;
    phases.copies.insert(phases.copies.end(), copies.begin(), copies.end());
    copies.clear();
  }

  void ArriveAtPhase(size_t barrier, const std::source_location& at) {
    if (IsLeftOut(at)) return;
    Phases& phases = PhasesAt(barrier);
    Known& known = threads_[current_].known;
    Learn(known, &phases.arrived);
    ++known[current_];
    if (--phases.awaited > 0) return;
    for (Thread& thread : threads_) {
      if (thread.state == State::kInPhase && thread.barrier == barrier) {
        thread.state = State::kReady;
      }
    }
  }

  void WaitForPhase(size_t barrier, bool odd, const std::source_location& at) {
    if (IsLeftOut(at)) return;
    Phases* phases = &PhasesAt(barrier);
    while ((phases->ended % 2 == 1) == odd) {
      threads_[current_].barrier = barrier;
      Pause(State::kInPhase);
      phases = &PhasesAt(barrier);
    }
    Learn(phases->at_end, &threads_[current_].known);
  }

  void FenceAsyncReads(const std::source_location& at) {
    if (!IsLeftOut(at)) threads_[current_].fences.push_back(Now());
  }
  // Null where the line is left out.
  WarpgroupProducts* ProductsAt(const std::source_location& at) {
    return IsLeftOut(at) ? nullptr : &Products();
  }
  WarpgroupProducts& Products() {
    if (!products_)
      products_.emplace(static_cast<ProductMemory*>(this), std::ssize(threads_), by_halves_);
    return *products_;
  }

 private:
  // Whether the writer of a word has let products read it, before what the running thread does now.
  void CheckFenced(const Word& word, size_t at) {
    constexpr char kUnfenced[] = "has a product read what no fence.proxy.async is behind";
    const int writer = word.write.thread;
    if (writer < 0 || word.fences >= threads_[writer].fences.size()) {
      Fault(kUnfenced, at * kWordBytes);
    }
    CheckOrdered(threads_[writer].fences[word.fences], kUnfenced, at);
  }

  // ---- ProductMemory ----

  int thread() const override { return current_; }
  const std::byte* bytes() const override { return shared_.data(); }
  void CheckReadable(size_t offset, size_t bytes) override {
    CheckBounds("has a product read", offset, bytes);
    for (size_t at = offset / kWordBytes; at * kWordBytes < offset + bytes; ++at) {
      const Word& word = WordAt(at);
      if (!word.written) Fault("has a product read what nobody wrote", at * kWordBytes);
      CheckLanded(word, at);
      CheckOrdered(word.write, "has a product read what another thread writes", at);
      CheckFenced(word, at);
    }
  }
  void Hold(size_t offset, size_t bytes) override {
    for (size_t at = offset; at < offset + bytes; at += kWordBytes) {
      ++WordAt(at / kWordBytes).products;
    }
  }
  void Release(size_t offset, size_t bytes) override {
    for (size_t at = offset; at < offset + bytes; at += kWordBytes) {
      Word& word = WordAt(at / kWordBytes);
      --word.products;
      word.read = {.thread = kMany, .warp = kMany, .block_epoch = epoch_};
    }
  }
  void NoteRead(size_t offset, size_t bytes) override {
    if (!has_phases_) return;  // All meet, and Release knows of it.
    for (size_t at = offset; at < offset + bytes; at += kWordBytes) Note(at / kWordBytes);
  }
  void WaitInProduct() override { Pause(State::kInProduct); }
  void Wake(int first, int count) override {
    for (int thread = first; thread < first + count; ++thread) {
      if (threads_[thread].state == State::kInProduct) threads_[thread].state = State::kReady;
    }
  }

  // The barrier's phases: the running one is at an end if all have arrived, and its copies land.
  Phases& PhasesAt(size_t barrier) {
    const auto it = phases_.find(barrier);
    if (it == phases_.end()) Fault("uses a barrier that is none", barrier);
    Phases& phases = it->second;
    if (phases.awaited > 0) return phases;
    for (const PendingCopy& copy : phases.copies) Land(copy);
    phases.copies.clear();
    phases.awaited = phases.arrivals;
    ++phases.ended;
    phases.at_end = std::exchange(phases.arrived, Known(threads_.size()));
    return phases;
  }

  // The running thread's.
  uint32_t Time() const {
    const Known& known = threads_[current_].known;
    return known.empty() ? 0 : known[current_];
  }

  Touch Now() {
    return {.thread = current_,
            .warp = current_ / kWarpThreads,
            .block_epoch = epoch_,
            .warp_epoch = WarpOf(current_).epoch,
            .time = Time()};
  }

  // A copy to `offset` is under way.
  void Begin(size_t offset, const void* from, size_t bytes) {
    CheckBounds("copies to", offset, bytes);
    if (watches_early_ && threads_[current_].is_early && WouldBeClosed(from, bytes)) {
      Fault(kTouchesEarly, offset);
    }
    TakeForWriting(offset, bytes);
    for (size_t word = offset / kWordBytes; word * kWordBytes < offset + bytes; ++word) {
      WordAt(word).in_flight = current_;
    }
    std::memset(shared_.data() + offset, 0xFF, bytes);
  }

  Word& WordAt(size_t index) {
    Word& word = words_[index];
    if (word.block != block_) word = {.block = block_};
    return word;
  }
  Warp& WarpOf(int thread) { return warps_[thread / kWarpThreads]; }
  static int LaneOf(int thread) { return thread % kWarpThreads; }

  // The running thread waits until the scheduler lets it go on.
  void Pause(State state) {
    threads_[current_].state = state;
    SwitchToScheduler();
  }

  // If the scheduler ends the block, whoever waits here is unwound.
  void SwitchToScheduler() {
    const FiberSwitch announced(scheduler_stack_);
    scheduler_ = std::move(scheduler_).resume();
  }

  context::fiber Fiber(int thread, const std::function<void()>& kernel);
  void SwitchTo(int thread) {
    const FiberSwitch announced(threads_[thread].stack);
    threads_[thread].fiber = std::move(threads_[thread].fiber).resume();
  }
  // Whoever waits is unwound, on its own stack.
  void Unwind(Thread* thread) {
    if (!thread->fiber) return;
    const FiberSwitch announced(thread->stack);
    thread->fiber = {};
  }

  // All threads of the running thread's warp. Exchanging numbers orders nothing in memory.
  void Meet(bool orders_memory) {
    Warp& warp = WarpOf(current_);
    warp.arrived |= 1u << LaneOf(current_);
    if (warp.arrived != 0xFFFFFFFFu) return Pause(State::kInWarp);
    warp.arrived = 0;
    ++warp.meetings;
    const int first = current_ / kWarpThreads * kWarpThreads;
    if (orders_memory) {
      ++warp.epoch;
      if (!phases_.empty()) ShareKnown(first);
    }
    for (int thread = first; thread < first + kWarpThreads; ++thread) {
      if (threads_[thread].state == State::kInWarp) threads_[thread].state = State::kReady;
    }
  }

  // All threads of a warp learn what each knows.
  void ShareKnown(int first) {
    Known all(threads_.size());
    for (int lane = 0; lane < kWarpThreads; ++lane) Learn(threads_[first + lane].known, &all);
    for (int thread = first; thread < first + kWarpThreads; ++thread) {
      threads_[thread].known = all;
      ++threads_[thread].known[thread];
    }
  }

  bool IsLeftOut(const std::source_location& at) {
    sites_.insert({at.file_name(), at.line()});
    return IsLeftOutNow(at);
  }
  bool IsLeftOutNow(const std::source_location& at) const {
    return left_out_ && left_out_->line == at.line() &&
           *left_out_ == SiteOf(at.file_name(), at.line());
  }

  // No thread of the block goes on: what one has read may be no address.
  [[noreturn]] void Fault(const char* what, size_t offset) override {
    Report(what, offset);
    SwitchToScheduler();
    std::abort();
  }

  void Report(const char* what, size_t offset) {
    faulted_ = true;
    char text[256];
    std::snprintf(text, sizeof(text), "%.120s: thread %d of block %u %s, byte %zu of %zu", name_,
                  current_, blockIdx.x, what, offset, shared_.size());
    std::fprintf(stderr, "emulated GPU: %s\n", text);
    Settings& settings = TheSettings();
    const std::scoped_lock lock(settings.mutex);
    if (settings.fault.empty()) settings.fault = text;
  }

  void CheckBounds(const std::string& does, size_t offset, size_t bytes) {
    if (offset <= shared_.size() && bytes <= shared_.size() - offset) return;
    Fault((does + " an address out of bounds").c_str(), offset);
  }

  void CheckLanded(const Word& word, size_t index) {
    if (word.in_flight != kNobody) Fault("touches what a copy is to fill", index * kWordBytes);
  }

  // Whether `touch` happened before whatever the running thread does now.
  void CheckOrdered(const Touch& touch, const char* what, size_t word) {
    if (touch.thread == kNobody || touch.thread == current_) return;
    if (touch.block_epoch < epoch_) return;
    if (touch.warp == current_ / kWarpThreads && touch.warp_epoch < WarpOf(current_).epoch) return;
    if (touch.thread >= 0 && Knows(touch.thread, touch.time)) return;
    Fault(what, word * kWordBytes);
  }

  bool Knows(int thread, uint32_t time) const {
    const Known& known = threads_[current_].known;
    return !known.empty() && time <= known[thread];
  }

  // The running thread reads a word.
  void Note(size_t word) {
    Touch* const touch = &WordAt(word).read;
    const int warp = current_ / kWarpThreads;
    if (has_phases_) {
      WarpReads& reads = reads_[word * warps_.size() + warp];
      if (reads.block_epoch != epoch_ || reads.time != Time()) reads = {0, Time(), epoch_};
      reads.lanes |= 1u << LaneOf(current_);
    }
    const bool same_epoch = touch->thread != kNobody && touch->block_epoch == epoch_;
    const bool many = same_epoch && touch->thread != current_;
    *touch = {.thread = many ? kMany : current_,
              .warp = same_epoch && touch->warp != warp ? kMany : warp,
              .block_epoch = epoch_,
              .warp_epoch = WarpOf(current_).epoch,
              .time = Time()};
  }

  // Whoever has read a word in phases, warp by warp.
  void CheckReadsInPhases(size_t word, const char* what) {
    for (size_t warp = 0; warp < warps_.size(); ++warp) {
      const WarpReads& reads = reads_[word * warps_.size() + warp];
      if (reads.block_epoch < epoch_) continue;
      for (int lane = 0; lane < kWarpThreads; ++lane) {
        if ((reads.lanes >> lane & 1u) == 0) continue;
        const int thread = static_cast<int>(warp) * kWarpThreads + lane;
        CheckOrdered({.thread = thread, .block_epoch = reads.block_epoch, .time = reads.time}, what,
                     word);
      }
      reads_[word * warps_.size() + warp] = {};
    }
  }

  // Whoever has read a word has done so before what the running thread does now.
  void CheckReads(size_t word, const char* what) {
    if (WordAt(word).products > 0) Fault("writes what a product is to read", word * kWordBytes);
    if (!has_phases_) {
      CheckOrdered(WordAt(word).read, what, word);
    } else {
      CheckReadsInPhases(word, what);
    }
  }

  void TakeForWriting(size_t offset, size_t bytes) {
    for (size_t word = offset / kWordBytes; word * kWordBytes < offset + bytes; ++word) {
      Word& shadow = WordAt(word);
      CheckLanded(shadow, word);
      CheckOrdered(shadow.write, "writes what another thread writes", word);
      CheckReads(word, "writes what another thread reads");
      shadow.written = true;
      shadow.write = Now();
      shadow.fences = threads_[current_].fences.size();
      shadow.read = {};
    }
  }

  // For what runs until the next call.
  void SetMemoryClosed(bool closes) {
    if (closes != memory_is_closed_) closes ? CloseDeviceMemory() : OpenDeviceMemory();
    memory_is_closed_ = closes;
  }

  void Land(const PendingCopy& copy) {
    const bool was_closed = memory_is_closed_;
    SetMemoryClosed(false);
    for (size_t word = copy.offset / kWordBytes; word * kWordBytes < copy.offset + copy.bytes;
         ++word) {
      Word& shadow = WordAt(word);
      shadow.in_flight = kNobody;
      shadow.fences = threads_[copy.thread].fences.size();
      shadow.write = {.thread = copy.thread,
                      .warp = copy.thread / kWarpThreads,
                      .block_epoch = epoch_,
                      .warp_epoch = WarpOf(copy.thread).epoch,
                      .time = copy.time};
    }
    if (copy.from == nullptr) {
      std::memset(shared_.data() + copy.offset, 0, copy.bytes);
    } else {
      std::memcpy(shared_.data() + copy.offset, copy.from, copy.there);
      std::memset(shared_.data() + copy.offset + copy.there, 0, copy.bytes - copy.there);
    }
    SetMemoryClosed(was_closed);
  }

  const char* const name_;
  const bool follows_launches_;
  Random random_;
  context::fiber scheduler_;
  StackBounds scheduler_stack_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::byte>& shared_;
  std::vector<Word>& words_;
  std::vector<WarpReads>& reads_;  // [word, warp]; unused where there are no phases
  std::map<size_t, Phases> phases_;
  uint64_t& epoch_;       // one more each time that all threads have met
  const uint64_t block_;  // The epoch that it began in.
  bool has_phases_ = false;
  int current_ = 0;
  bool faulted_ = false;
  std::set<std::pair<const char*, unsigned>> sites_;
  std::set<std::pair<const char*, unsigned>> launch_waits_;
  std::optional<Site> left_out_;
  bool has_waited_ = false;  // for the launch before, some thread
  bool watches_early_ = false;
  bool memory_is_closed_ = false;
  bool by_halves_ = false;
  std::optional<WarpgroupProducts> products_;  // if a thread has begun some
};

thread_local Block* running = nullptr;

context::fiber Block::Fiber(int thread, const std::function<void()>& kernel) {
  static thread_local context::pooled_fixedsize_stack stacks(kStackBytes);
  return {std::allocator_arg, NotingStacks{&stacks, &threads_[thread].stack},
          [this, thread, &kernel](context::fiber&& from) {
            scheduler_stack_ = FiberSwitch::ArriveFirst();
            const LastFiberSwitch announced(&scheduler_stack_);
            scheduler_ = std::move(from);
            kernel();
            if (products_ && products_->AreUnderWay()) {
              Fault("ends, and has not waited for its products", 0);
            }
            threads_[thread].state = State::kDone;
            return std::move(scheduler_);
          }};
}

bool Block::Run(const std::function<void()>& kernel) {
  running = this;
  std::vector<int> ready;
  while (true) {
    ready.clear();
    int num_done = 0;
    for (int i = 0; i < std::ssize(threads_); ++i) {
      if (threads_[i].state == State::kReady) ready.push_back(i);
      if (threads_[i].state == State::kDone) ++num_done;
    }
    if (num_done == std::ssize(threads_)) break;
    if (ready.empty()) {
      const bool all_wait = std::all_of(threads_.begin(), threads_.end(), [](const Thread& thread) {
        return thread.state == State::kAtBarrier;
      });
      if (!all_wait) {
        Report("waits for threads that never come", 0);
        break;
      }
      ++epoch_;
      for (Thread& thread : threads_) thread.state = State::kReady;
      continue;
    }
    for (size_t i = ready.size(); i > 1; --i) std::swap(ready[i - 1], ready[random_.Below(i)]);
    if (watches_early_) {  // Memory is closed and opened once.
      const bool first = random_.Chance(0.5);
      std::stable_partition(ready.begin(), ready.end(),
                            [&](int i) { return threads_[i].is_early == first; });
    }
    for (const int i : ready) {
      SetMemoryClosed(watches_early_ && threads_[i].is_early);
      current_ = i;
      threadIdx.x = i;
      if (!threads_[i].fiber) threads_[i].fiber = Fiber(i, kernel);
      SwitchTo(i);
      if (memory_is_closed_ && TouchedClosedMemory()) Report(kTouchesEarly, 0);
      if (faulted_) break;
    }
    SetMemoryClosed(false);
    if (faulted_) break;
  }
  if (!faulted_ && follows_launches_ && !has_waited_) {
    Report("ends, and nobody has waited for the launch before", 0);
  }
  for (Thread& thread : threads_) Unwind(&thread);
  threads_.clear();
  running = nullptr;
  return !faulted_;
}

}  // namespace

void WaitForLaunchBefore(const std::source_location& at) { running->WaitForLaunchBefore(at); }
void Barrier(const std::source_location& at) { running->Barrier(at); }
void WarpBarrier(const std::source_location& at) { running->WarpBarrier(at); }
void ExchangeInWarp(const void* mine, size_t bytes, void* all) {
  running->Exchange(mine, bytes, all);
}
size_t SharedBytes() { return running->shared_bytes(); }
void ReadShared(size_t offset, void* to, size_t bytes) { running->Read(offset, to, bytes); }
void WriteShared(size_t offset, const void* from, size_t bytes) {
  running->Write(offset, from, bytes);
}
void AddToShared(size_t offset, uint64_t value) { running->Add(offset, value); }
void CopyAsync(size_t offset, const void* from, size_t bytes, size_t there) {
  running->CopyAsync(offset, from, bytes, there);
}
void CommitCopies() { running->CommitCopies(); }
void WaitForCopies(int pending, const std::source_location& at) {
  running->WaitForCopies(pending, at);
}

void InitPhases(size_t barrier, int arrivals) { running->InitPhases(barrier, arrivals); }
void CopyInPhase(size_t offset, const void* from, size_t bytes, size_t barrier) {
  running->CopyInPhase(offset, from, bytes, barrier);
}
void MoveCopiesToPhase(size_t barrier) { running->MoveCopiesToPhase(barrier); }
void ArriveAtPhase(size_t barrier, const std::source_location& at) {
  running->ArriveAtPhase(barrier, at);
}
void WaitForPhase(size_t barrier, bool odd, const std::source_location& at) {
  running->WaitForPhase(barrier, odd, at);
}

void FenceAsyncReads(const std::source_location& at) { running->FenceAsyncReads(at); }
void FenceProducts(const std::source_location& at) {
  if (auto* const products = running->ProductsAt(at)) products->Fence();
}
void BeginProduct(const ProductArgs& args) { running->Products().Begin(args); }
void CommitProducts(const std::source_location& at) {
  if (auto* const products = running->ProductsAt(at)) products->Commit();
}
void WaitForProducts(int pending, const std::source_location& at) {
  if (auto* const products = running->ProductsAt(at)) products->Wait(pending);
}

bool RunBlocks(const char* name, int64_t num_blocks, int threads, size_t shared_bytes,
               const std::function<void()>& kernel, const BlockRules& rules) {
  uint64_t seed;
  {
    Settings& settings = TheSettings();
    const std::scoped_lock lock(settings.mutex);
    seed = settings.seed * 1'000'003 + settings.num_launches++;
  }
  const KernelFloatScope restored;
  SetFloatEnvironment(rules.keeps_denormals ? kIeeeFloats : kKernelFloats);
  blockDim.x = static_cast<unsigned>(threads);
  gridDim.x = static_cast<unsigned>(num_blocks);
  bool ok = true;
  for (int64_t i = 0; i < num_blocks && ok; ++i) {
    blockIdx.x = static_cast<unsigned>(i);
    ok = Block(name, threads, shared_bytes, rules.follows_launches,
               seed * 1'000'003 + static_cast<uint64_t>(i))
             .Run(kernel);
  }
  return ok;
}

}  // namespace emulated
}  // namespace tandem
