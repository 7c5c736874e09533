// Numeric addresses of hosts, as the kernel reads them.

#ifndef TANDEM_RUNTIME_BASE_IP_ADDRESS_H_
#define TANDEM_RUNTIME_BASE_IP_ADDRESS_H_

#include <string>

namespace tandem {

// "::1" of "[::1]"; anything else as it is.
std::string WithoutBrackets(const std::string& host);

// "10.0.0.1", "2001:db8::1": no brackets, no port.
bool IsIpAddress(const std::string& text);

// Whether it is an address that only this machine reaches: of 127.0.0.0/8 (also where IPv6 maps it,
// as in ::ffff:127.0.0.1), or ::1. No name is one, whatever it begins with; who takes "localhost"
// for one says so.
bool IsLoopback(const std::string& text);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_IP_ADDRESS_H_
