// Fairness of one simulated router, judged from outside: a request of a client that has nothing
// else waiting goes to a worker before a third one of any other client does.
//
// It is behind one of them, or behind two if workers came or went: requests whose prompts travel
// then join those whose prompts stay, or part from them. Only requests that could go to the same
// workers are compared, each with its first attempt: later ones are of what has had its turn.

#ifndef TANDEM_RUNTIME_SIMULATION_TURNS_JUDGE_H_
#define TANDEM_RUNTIME_SIMULATION_TURNS_JUDGE_H_

#include <cstdint>
#include <map>
#include <string>

namespace tandem {

class TurnsJudge {
 public:
  // `kind`: requests of equal kinds may go to the same workers; -1: who knows. Before its router
  // hears of it, which may send it to a worker at once.
  void OnAsked(uint64_t asked, const std::string& client, int32_t kind);
  // Empty, or who waits for too long.
  std::string OnAttempt(uint64_t asked);
  void OnStarted(uint64_t asked) { open_.erase(asked); }  // Or over.
  void Clear() { open_.clear(); }
  int64_t num_overtaken() const { return num_overtaken_; }

 private:
  struct Request {
    std::string client;
    int32_t kind = 0;
    bool waits = true;                         // For its first attempt.
    bool only = false;                         // Nothing else of its client waited when it came.
    std::map<std::string, int32_t> overtaken;  // By clients.
  };

  std::map<uint64_t, Request> open_;  // Without a token.
  int64_t num_overtaken_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_TURNS_JUDGE_H_
