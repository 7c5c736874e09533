#include "services/server/build_info.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace tandem {

// Programs alone are linked with it (cmake/TandemCommit.cmake).
extern const char kCommit[] __attribute__((weak));

// Asked by name, as most programs are not linked with UCX.
std::string LoadedUcx() {
  void* const symbol = dlsym(RTLD_DEFAULT, "ucp_get_version");
  if (symbol == nullptr) return "";
  unsigned major = 0, minor = 0, release = 0;
  reinterpret_cast<void (*)(unsigned*, unsigned*, unsigned*)>(symbol)(&major, &minor, &release);
  return absl::StrCat(major, ".", minor, ".", release);
}

const BuildInfo& ThisBuild() {
  static const BuildInfo* const build = [] {
    auto* const made = new BuildInfo{.commit = kCommit == nullptr ? "" : kCommit,
                                     .cuda = TANDEM_BUILT_WITH_CUDA,
                                     .nccl = TANDEM_BUILT_WITH_NCCL,
                                     .ucx = TANDEM_BUILT_WITH_UCX,
                                     .ucx_loaded = LoadedUcx()};
    if (made->ucx_loaded == made->ucx) made->ucx_loaded.clear();
    return made;
  }();
  return *build;
}

std::string VersionLine(std::string_view program, const BuildInfo& build) {
  const auto part = [](const char* name, const std::string& version) {
    return version.empty() ? absl::StrCat("no ", name) : absl::StrCat(name, " ", version);
  };
  const std::string commit =
      build.commit.empty() ? "" : absl::StrCat("commit ", build.commit, ", ");
  const std::string loaded =
      build.ucx_loaded.empty() ? "" : absl::StrCat(", loaded ", build.ucx_loaded);
  return absl::StrCat(std::string(program), " ", TANDEM_VERSION, " (", commit,
                      part("CUDA", build.cuda), ", ", part("NCCL", build.nccl), ", ",
                      part("UCX", build.ucx), loaded, ")");
}

}  // namespace tandem
