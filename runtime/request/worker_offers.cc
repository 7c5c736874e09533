#include "runtime/request/worker_offers.h"

namespace tandem {

bool WorkerOffers::Update(const Fleet& fleet) {
  std::set<std::pair<std::string, int64_t>> offers;
  std::set<int64_t> prompt_offers;
  for (const auto& [name, worker] : fleet.workers()) {
    offers.emplace(worker.registration.model, worker.offered_tokens());
    if (worker.registration.role == WorkerRole::kPrefill) {
      prompt_offers.insert(worker.offered_prompt_tokens());
    }
  }
  if (offers == offers_ && prompt_offers == prompt_offers_) return false;
  offers_ = std::move(offers);
  prompt_offers_ = std::move(prompt_offers);
  return true;
}

std::optional<int64_t> WorkerOffers::Least(const std::string& model, int64_t tokens) const {
  const auto offer = offers_.lower_bound({model, tokens});
  if (offer == offers_.end() || offer->first != model) return std::nullopt;
  return offer->second;
}

std::optional<int64_t> WorkerOffers::LeastForPrompt(int64_t tokens) const {
  const auto offer = prompt_offers_.lower_bound(tokens);
  if (offer == prompt_offers_.end()) return std::nullopt;
  return *offer;
}

}  // namespace tandem
