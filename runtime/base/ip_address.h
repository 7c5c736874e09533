// Where hosts and ports are: numeric addresses as the kernel reads them, and HOST:PORT.

#ifndef TANDEM_RUNTIME_BASE_IP_ADDRESS_H_
#define TANDEM_RUNTIME_BASE_IP_ADDRESS_H_

#include <optional>
#include <string>
#include <string_view>

namespace tandem {

struct HostPort {
  std::string host;  // A name or a numeric address; one of IPv6 keeps its brackets.
  int port = 0;      // 0 to 65535.
};

// The parts of "HOST:PORT". Nothing if there is no host, or the port is no such number.
std::optional<HostPort> ParseHostPort(std::string_view text);

// Before the path of a socket that is a file.
inline constexpr std::string_view kUnixAddress = "unix:";

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
