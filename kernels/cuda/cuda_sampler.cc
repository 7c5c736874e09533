#include "kernels/cuda/cuda_sampler.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cuda/cuda_sampling.h"
#include "kernels/sampling/philox.h"
#include "kernels/sampling/sampler.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

// Arrays one behind the other in memory of the device. Those that are uploaded lie in memory of the
// host at the same places. Without memory, addresses are places.
struct Arrays {
  uintptr_t device = 0;
  std::byte* host = nullptr;
  size_t size_bytes = 0;

  template <typename T>
  T* Add(int64_t count) {
    constexpr size_t kAlignment = 16;
    static_assert(alignof(T) <= kAlignment && std::is_trivially_copyable_v<T>);
    T* const array = reinterpret_cast<T*>(device + size_bytes);
    size_bytes = RoundUp(size_bytes + static_cast<size_t>(count) * sizeof(T), kAlignment);
    return array;
  }
  template <typename T>
  const T* Upload(const std::vector<T>& from) {
    if (host != nullptr && !from.empty()) {
      std::memcpy(host + size_bytes, from.data(), from.size() * sizeof(T));
    }
    return Add<T>(std::ssize(from));
  }
};

// What is uploaded for a call.
struct Plan {
  std::vector<int32_t> rows;
  std::vector<SampleJob> jobs;
  std::vector<SampleEdit> edits;
  std::vector<SampleJob> draws, cuts;
  std::vector<int32_t> scored, summed;
  std::vector<SampleBias> biases;
  std::vector<int32_t> masked;
  std::vector<uint32_t> words;
  bool cuts_twice = false;
  int64_t num_top = 0;
};

int32_t CountOf(const auto& array) { return static_cast<int32_t>(array.size()); }

void AddEdit(const SampleQuery& query, int64_t vocabulary, SampleJob* job, Plan* plan) {
  if (query.logit_bias.empty() && query.masked_tokens.empty() && query.allowed_tokens.empty()) {
    return;
  }
  SampleEdit edit{.row = job->row,
                  .first_bias = CountOf(plan->biases),
                  .first_masked = CountOf(plan->masked),
                  .first_word = CountOf(plan->words),
                  .num_words = CountOf(query.allowed_tokens.words)};
  for (const auto& [id, bias] : query.logit_bias) {
    if (id >= 0 && id < vocabulary) plan->biases.push_back({id, bias});
  }
  for (const int32_t id : query.masked_tokens) {
    if (id >= 0 && id < vocabulary) plan->masked.push_back(id);
  }
  // What one id is given stays in its order.
  std::stable_sort(plan->biases.begin() + edit.first_bias, plan->biases.end(),
                   [](const SampleBias& a, const SampleBias& b) { return a.id < b.id; });
  const auto masked = plan->masked.begin() + edit.first_masked;
  std::sort(masked, plan->masked.end());
  plan->masked.erase(std::unique(masked, plan->masked.end()), plan->masked.end());
  plan->words.insert(plan->words.end(), query.allowed_tokens.words.begin(),
                     query.allowed_tokens.words.end());
  edit.num_biases = CountOf(plan->biases) - edit.first_bias;
  edit.num_masked = CountOf(plan->masked) - edit.first_masked;
  job->edit = CountOf(plan->edits);
  plan->edits.push_back(edit);
}

void AddDraw(const SampleQuery& query, int64_t vocabulary, SampleJob* job, Plan* plan) {
  job->draw = CountOf(plan->draws);
  job->temperature = query.temperature;
  job->random = RandomBits(query.seed, query.choice, query.position, RandomPurpose::kToken);
  job->top_k = query.top_k < vocabulary ? query.top_k : 0;
  job->has_top_p = query.top_p < 1.0f;
  if (job->has_top_p) {
    job->top_p = static_cast<uint32_t>(static_cast<double>(query.top_p) * 0x1p32);
  }
  if (job->top_k > 0 || job->has_top_p) {
    job->cut = CountOf(plan->cuts);
    plan->cuts.push_back(*job);
    plan->cuts_twice |= job->top_k > 0 && job->has_top_p;
  }
  plan->draws.push_back(*job);
}

// `checked`: what is wrong with the query but for its row.
void AddQuery(const SampleQuery& query, const absl::Status& checked, int64_t vocabulary,
              Plan* plan) {
  if (plan->rows.empty() || plan->rows.back() != query.row) plan->rows.push_back(query.row);
  SampleJob job{.row = query.row, .place = CountOf(plan->rows) - 1};
  if (!checked.ok()) {
    job.given = 0;
  } else if (query.given >= 0) {
    job.given = query.given;
  } else {
    AddEdit(query, vocabulary, &job, plan);
    if (query.temperature > 0) AddDraw(query, vocabulary, &job, plan);
  }
  if (checked.ok() && query.num_top_logprobs >= 0) {
    job.num_top = static_cast<int32_t>(std::min<int64_t>(query.num_top_logprobs, vocabulary));
    job.first_top = plan->num_top;
    plan->num_top += job.num_top;
    plan->scored.push_back(CountOf(plan->jobs));
    if (plan->summed.empty() || plan->summed.back() != job.place) plan->summed.push_back(job.place);
  }
  plan->jobs.push_back(job);
}

// In the order of the structure: uploads, answers, what kernels leave each other.
SampleLaunch Arrange(const HostSampleArgs& args, const Plan& plan, Arrays* arrays) {
  const int64_t pieces = CeilDiv(args.vocabulary, kVocabularyPiece);
  const int64_t rows = std::ssize(plan.rows);
  const int64_t edits = std::ssize(plan.edits);
  const int64_t cuts = std::ssize(plan.cuts);
  return {.logits = args.logits,
          .vocabulary = args.vocabulary,
          .num_pieces = static_cast<int32_t>(pieces),
          .num_rows = CountOf(plan.rows),
          .num_jobs = CountOf(plan.jobs),
          .num_edits = CountOf(plan.edits),
          .num_draws = CountOf(plan.draws),
          .num_cuts = CountOf(plan.cuts),
          .num_scored = CountOf(plan.scored),
          .num_summed = CountOf(plan.summed),
          .cuts_twice = plan.cuts_twice,
          .jobs = arrays->Upload(plan.jobs),
          .rows = arrays->Upload(plan.rows),
          .edits = arrays->Upload(plan.edits),
          .draws = arrays->Upload(plan.draws),
          .cuts = arrays->Upload(plan.cuts),
          .scored = arrays->Upload(plan.scored),
          .summed = arrays->Upload(plan.summed),
          .biases = arrays->Upload(plan.biases),
          .masked = arrays->Upload(plan.masked),
          .words = arrays->Upload(plan.words),
          .answers = arrays->Add<SampleAnswer>(std::ssize(plan.jobs)),
          .drawn_tokens = args.drawn_tokens,
          .top = arrays->Add<RankedToken>(plan.num_top),
          .best = arrays->Add<uint64_t>((rows + edits) * pieces),
          .not_finite = arrays->Add<uint64_t>(rows * pieces),
          .edited = arrays->Add<float>(edits * args.vocabulary),
          .exp_sums = arrays->Add<float>(rows * pieces),
          .weights = arrays->Add<uint64_t>(std::ssize(plan.draws) * pieces),
          .buckets = arrays->Add<uint64_t>(cuts * 2 * kNumBuckets),
          .candidates = arrays->Add<uint16_t>(cuts * pieces * kVocabularyPiece),
          .num_candidates = arrays->Add<int32_t>(cuts * pieces),
          .states = arrays->Add<SampleCut>(cuts)};
}

constexpr const char* kDoing = "enqueueing draws";

}  // namespace

absl::Status CudaSampler::Enqueue(const HostSampleArgs& args, uint64_t ticket) {
  if (free_.empty()) free_.push_back(std::make_unique<Call>(stream_));
  running_.push_back(std::move(free_.back()));
  free_.pop_back();
  Call& call = *running_.back();
  call.ticket = ticket;
  call.args = args;
  call.answers = nullptr;
  call.checked.clear();
  Plan plan;
  for (int64_t i = 0; i < args.count; ++i) {
    call.checked.push_back(CheckQuery(args.queries[i], args.vocabulary));
    AddQuery(args.queries[i], call.checked.back(), args.vocabulary, &plan);
  }
  Arrays sizes;
  const SampleLaunch places = Arrange(args, plan, &sizes);
  const auto upload_bytes = reinterpret_cast<size_t>(places.answers);
  const size_t answers_bytes = reinterpret_cast<size_t>(places.best) - upload_bytes;
  call.top_place = reinterpret_cast<size_t>(places.top) - upload_bytes;
  TANDEM_ASSIGN_OR_RETURN(void* const memory, memory_.Get(sizes.size_bytes));
  TANDEM_ASSIGN_OR_RETURN(void* const upload, call.upload.Get(upload_bytes));
  TANDEM_ASSIGN_OR_RETURN(void* const answers, call.download.Get(answers_bytes));
  Arrays arrays{.device = reinterpret_cast<uintptr_t>(memory),
                .host = static_cast<std::byte*>(upload)};
  const SampleLaunch launch = Arrange(args, plan, &arrays);
  TANDEM_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(memory, upload, upload_bytes, cudaMemcpyHostToDevice, stream_), kDoing));
  TANDEM_RETURN_IF_ERROR(CudaStatus(CudaSample(launch, stream_), kDoing));
  TANDEM_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(answers, launch.answers, answers_bytes, cudaMemcpyDeviceToHost, stream_),
      kDoing));
  call.answers = static_cast<const std::byte*>(answers);
  return absl::OkStatus();
}

void CudaSampler::Finish(uint64_t ticket, bool ok) {
  while (!running_.empty() && running_.front()->ticket <= ticket) {
    if (ok && running_.front()->answers != nullptr) WriteResults(*running_.front());
    free_.push_back(std::move(running_.front()));
    running_.pop_front();
  }
}

void CudaSampler::WriteResults(const Call& call) {
  const HostSampleArgs& args = call.args;
  const auto* const answers = reinterpret_cast<const SampleAnswer*>(call.answers);
  const auto* top = reinterpret_cast<const RankedToken*>(call.answers + call.top_place);
  for (int64_t i = 0; i < args.count; ++i) {
    const SampleAnswer& answer = answers[i];
    const bool is_scored = call.checked[i].ok() && args.queries[i].num_top_logprobs >= 0;
    const RankedToken* const first = top;
    if (is_scored) top += std::min<int64_t>(args.queries[i].num_top_logprobs, args.vocabulary);
    if (answer.not_finite >= 0) {
      args.results[i] = NotFinite(answer.not_finite, answer.logit);
    } else if (!call.checked[i].ok()) {
      args.results[i] = call.checked[i];
    } else if (answer.token < 0) {
      args.results[i] = AllMasked(args.vocabulary);
    } else {
      SampleResult result{.token = answer.token};
      if (is_scored) {
        result.logprob = answer.logprob;
        result.rank = static_cast<int32_t>(answer.num_better) + 1;
        result.top.assign(first, top);
      }
      args.results[i] = std::move(result);
    }
  }
}

}  // namespace tandem
