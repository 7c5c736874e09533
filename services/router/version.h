#ifndef TANDEM_SERVICES_ROUTER_VERSION_H_
#define TANDEM_SERVICES_ROUTER_VERSION_H_

namespace tandem {

inline constexpr char kVersion[] = TANDEM_VERSION;  // Of the CMake project.

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_VERSION_H_
