// What a simulated worker says to routers, against what a fault-free run would say.

#include <cstdint>
#include <string>
#include <variant>

#include "absl/strings/str_format.h"
#include "runtime/simulation/simulated_worker.h"
#include "runtime/simulation/world.h"

namespace tandem {

void SimulatedWorker::Judge(const RouterEvent& event) {
  const AttemptId id = std::visit([](const auto& e) { return e.attempt; }, event);
  Watched& watched = life_->attempts[id];
  const auto complain = [&](const std::string& what) {
    world_->Violate(absl::StrFormat("%s, request %d attempt %d: %s", process_.name,
                                    id.request.counter, id.attempt, what));
  };
  if (const auto* abort = std::get_if<AbortReply>(&event)) {
    if (abort->outcome == AbortOutcome::kTombstoned) watched.aborted = true;
    return;
  }
  world_->Log(process_.name, "event", event.index() * 1000 + id.request.counter, id.attempt);
  if (watched.over) return complain("an event after its terminal event");
  if (std::holds_alternative<RefusedEvent>(event) || std::holds_alternative<EndedEvent>(event)) {
    watched.over = true;
    return Over(id);
  }
  if (watched.aborted) return complain("it runs although its abort came first");
  const auto* token = std::get_if<TokenEvent>(&event);
  if (token == nullptr) return;
  const auto next = watched.next_position.find(token->choice);
  if (next == watched.next_position.end() || watched.finished.contains(token->choice)) {
    return complain(absl::StrFormat("a token of choice %d, which does not run", token->choice));
  }
  if (token->position != next->second) {
    return complain(absl::StrFormat("position %d follows %d", token->position, next->second - 1));
  }
  ++next->second;
  if (token->finish != FinishReason::kNone) watched.finished.insert(token->choice);
  watched.over = watched.finished.size() == watched.next_position.size();
  // The stream may come from other numerics; its router will not listen to this incarnation.
  if (life_->misdirected) return;
  AskedRequest* const asked = world_->book()->Find(id.request);
  if (asked == nullptr) return complain("nobody asked for it");
  const ExpectedRequest& expected = world_->book()->Expect(asked, numerics_);
  const ExpectedChoice& choice = expected.choices[static_cast<size_t>(token->choice)];
  const auto index = static_cast<size_t>(token->position) - asked->prompt.size();
  if (index >= choice.worker_tokens.size() || token->token != choice.worker_tokens[index]) {
    return complain(absl::StrFormat("choice %d, position %d: token %d is not the fault-free one",
                                    token->choice, token->position, token->token.token));
  }
  const bool last = index + 1 == choice.worker_tokens.size();
  if (token->finish != (last ? choice.worker_finish : FinishReason::kNone)) {
    complain(
        absl::StrFormat("choice %d, position %d: wrong finish", token->choice, token->position));
  }
}

}  // namespace tandem
