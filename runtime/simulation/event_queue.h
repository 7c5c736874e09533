// Virtual time: what happens, in order of time, and of scheduling where times are equal.

#ifndef TANDEM_RUNTIME_SIMULATION_EVENT_QUEUE_H_
#define TANDEM_RUNTIME_SIMULATION_EVENT_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace tandem {

class EventQueue {
 public:
  int64_t now_us() const { return now_us_; }
  bool empty() const { return heap_.empty(); }
  int64_t next_us() const { return heap_.front().at_us; }

  // A time that has passed means now.
  void At(int64_t at_us, std::function<void()> run) {
    heap_.push_back({std::max(at_us, now_us_), ++num_scheduled_, std::move(run)});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }

  // Runs the next event; there is one.
  void RunNext() {
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    const Event event = std::move(heap_.back());
    heap_.pop_back();
    now_us_ = event.at_us;
    event.run();
  }

 private:
  struct Event {
    int64_t at_us;
    uint64_t order;
    std::function<void()> run;
  };
  static bool Later(const Event& a, const Event& b) {
    return std::pair(a.at_us, a.order) > std::pair(b.at_us, b.order);
  }

  int64_t now_us_ = 0;
  uint64_t num_scheduled_ = 0;
  std::vector<Event> heap_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_EVENT_QUEUE_H_
