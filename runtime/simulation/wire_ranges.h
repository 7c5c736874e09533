// What must hold of every message before it may cross a process border: services refuse anything
// else, and with it the session. Here it is checked where it is said.

#ifndef TANDEM_RUNTIME_SIMULATION_WIRE_RANGES_H_
#define TANDEM_RUNTIME_SIMULATION_WIRE_RANGES_H_

#include <string>

#include "runtime/protocol/peer_messages.h"
#include "runtime/protocol/router_messages.h"

namespace tandem {

// Empty, or the value that would be refused.
std::string OutOfRange(const Submit& submit);
std::string OutOfRange(const Cancel& cancel);
std::string OutOfRange(const RouterEvent& event);
std::string OutOfRange(const ChunkBegun& chunk);
std::string OutOfRange(const WorkerRegistration& registration);
std::string OutOfRange(const DecodeToPrefill& message);
std::string OutOfRange(const PrefillToDecode& message);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_WIRE_RANGES_H_
