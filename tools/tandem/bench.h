// tandem bench: loads a server and reports TTFT, ITL, end-to-end times, throughput and goodput.

#ifndef TANDEM_TOOLS_TANDEM_BENCH_H_
#define TANDEM_TOOLS_TANDEM_BENCH_H_

#include <string>
#include <vector>

namespace tandem {

// `arguments` follow the subcommand. Returns the process's exit status: 1 if any request failed.
int BenchMain(const std::vector<std::string>& arguments);

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_BENCH_H_
