// Fairness of one simulated worker, judged from outside: a prompt that is through in one step, and
// that is all of its request here, is begun within three steps whatever else runs.
//
// Not counted are steps whose blocks were short, and steps that a shorter prompt had; after each of
// them it may be three more, since steps of who runs alone, and those in which the oldest prompt
// goes first, come in between.

#ifndef TANDEM_RUNTIME_SIMULATION_NEWCOMER_JUDGE_H_
#define TANDEM_RUNTIME_SIMULATION_NEWCOMER_JUDGE_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/simulation/simulation_options.h"

namespace tandem {

class NewcomerJudge {
 public:
  explicit NewcomerJudge(const WorkerShape& shape) : shape_(shape) {}

  // An attempt of a router, or of a decode worker, is given to the engine.
  void OnArrival(SessionId from, const AttemptId& attempt, const RequestSpec& spec);
  void OnOver(const AttemptId& attempt) { waiting_.erase(attempt); }  // Or not taken.
  void OnSessionLost(SessionId from);
  int64_t OnChunks(std::span<const ChunkNotice> chunks);  // How many newcomers begin.
  // After a step; loads before and after it. Empty, or who waits for too long.
  std::string OnStep(const Engine::StepResult& result, const WorkerLoad& before,
                     const WorkerLoad& after);

 private:
  struct Newcomer {
    SessionId from = 0;
    int64_t num_tokens = 0;
    int32_t waited = 0;
    int32_t excused = 0;
  };

  const WorkerShape shape_;
  std::map<AttemptId, Newcomer> waiting_;
  std::map<AttemptId, int64_t> lengths_;
  int64_t shortest_chunk_ = 0;  // The least that is left of a prompt of this step.
  bool preempted_waits_ = false;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_NEWCOMER_JUDGE_H_
