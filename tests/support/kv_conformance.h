// The contract of kv_transport.h, as tests that every transport passes.
//
// A test program links tandem_kv_conformance, which has main(), and says which transports it has.

#ifndef TANDEM_TESTS_SUPPORT_KV_CONFORMANCE_H_
#define TANDEM_TESTS_SUPPORT_KV_CONFORMANCE_H_

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/kv_side.h"

namespace tandem {

struct KvKind {
  std::string name;
  std::string path;                // What its links report.
  bool waits_for_receiver = true;  // No frame leaves before the receiver has attached.
  bool crosses_processes = true;   // Also tested with peers that are killed and stopped.
  std::unique_ptr<Side> (*make)(int32_t num_blocks);

  friend std::ostream& operator<<(std::ostream& out, const KvKind& kind) {
    return out << kind.name;
  }
};

// Defined by the program.
std::vector<KvKind> KvKinds();

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_KV_CONFORMANCE_H_
