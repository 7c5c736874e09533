#include "services/router/text_pool.h"

#include <pthread.h>

#include <utility>

namespace tandem {

TextPool::TextPool(int num_threads, size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

TextPool::~TextPool() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  ready_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
}

bool TextPool::TryPost(std::function<void()> job) {
  {
    MutexLock lock(&mu_);
    if (jobs_.size() >= max_waiting_) return false;
    jobs_.push_back(std::move(job));
  }
  ready_.Signal();
  return true;
}

void TextPool::Run() {
  pthread_setname_np(pthread_self(), "text");
  while (true) {
    std::function<void()> job;
    {
      MutexLock lock(&mu_);
      while (jobs_.empty() && !stopping_) ready_.Wait(&mu_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace tandem
