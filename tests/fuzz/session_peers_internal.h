// What the hostile peers share.

#ifndef TANDEM_TESTS_FUZZ_SESSION_PEERS_INTERNAL_H_
#define TANDEM_TESTS_FUZZ_SESSION_PEERS_INTERNAL_H_

#include <deque>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "services/server/convert.h"
#include "tests/fuzz/session_peers.h"

namespace tandem {

inline constexpr int32_t kFuzzVocabulary = 900;  // Below that of every model we fuzz with.

// Few, so that messages meet.
inline AttemptId FuzzAttempt(uint64_t router, Random* random) {
  return {.request = {.router_incarnation = router, .counter = 1 + random->Below(40)},
          .attempt = static_cast<uint32_t>(random->Between(1, 3))};
}

inline JobId FuzzJob(Random* random) { return 1 + random->Below(120); }

inline int64_t FuzzTimeLeft(Random* random) {
  const int64_t times[] = {0, 1, 2'000, 50'000, 400'000, 5'000'000, 60'000'000};
  return times[random->Below(std::size(times))];
}

// Half right, so that something comes of it.
SampledToken FuzzToken(Random* random);
absl::Status FuzzStatus(Random* random);

// What one thread has heard and another makes use of: jobs and reservations.
template <typename T>
class Overheard {
 public:
  void Add(T value) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    values_.push_back(std::move(value));
    if (values_.size() > 64) values_.pop_front();
  }
  // One of them, or `otherwise`.
  T Any(Random* random, T otherwise) const EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return values_.empty() ? otherwise : values_[random->Below(values_.size())];
  }

 private:
  mutable Mutex mu_;
  std::deque<T> values_ GUARDED_BY(mu_);
};

// A good message, an earlier one again, or one of them damaged.
template <typename Message>
class Mouth {
 public:
  Mouth(Random* random, double damaged) : random_(random), damaged_(damaged) {}

  Message Next(Message good) {
    Message message = std::move(good);
    if (!said_.empty() && random_->Chance(0.2)) message = said_[random_->Below(said_.size())];
    said_.push_back(message);
    if (said_.size() > 32) said_.pop_front();
    if (random_->Chance(damaged_)) {
      for (uint64_t i = 0; i <= random_->Below(3); ++i) Perturb(&message, random_);
    }
    return message;
  }

 private:
  Random* const random_;
  const double damaged_;
  std::deque<Message> said_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_FUZZ_SESSION_PEERS_INTERNAL_H_
