// A fleet's door with what it borrows.

#ifndef TANDEM_TESTS_SUPPORT_TEST_DOOR_H_
#define TANDEM_TESTS_SUPPORT_TEST_DOOR_H_

#include "runtime/base/memory_budget.h"
#include "services/server/fleet_auth.h"
#include "services/server/open_calls.h"

namespace tandem {

struct TestDoorParts {
  MemoryBudget budget{int64_t{64} << 20};
  OpenCalls open_calls{&budget, {.max_message_bytes = 1 << 20}};
};

class TestDoor : private TestDoorParts, public FleetDoor {
 public:
  explicit TestDoor(const FleetSecret& secret, size_t calls_per_challenge = kCallsPerChallenge)
      : FleetDoor(secret, &open_calls, calls_per_challenge) {}
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_TEST_DOOR_H_
