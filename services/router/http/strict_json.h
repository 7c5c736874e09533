// JSON from a stranger: depth-limited, UTF-8 checked, and a key that an object repeats is an error
// rather than a choice between its values.

#ifndef TANDEM_SERVICES_ROUTER_HTTP_STRICT_JSON_H_
#define TANDEM_SERVICES_ROUTER_HTTP_STRICT_JSON_H_

#include <boost/json/value.hpp>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace tandem {

// InvalidArgument that says what is wrong and at which byte. Any thread.
absl::StatusOr<boost::json::value> ParseStrictJson(std::string_view text);

// At most so many values and keys does JSON of these characters have.
int64_t MostJsonValues(std::string_view text);

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_STRICT_JSON_H_
