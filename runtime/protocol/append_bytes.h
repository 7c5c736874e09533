// How the machines write their state down for comparison: fixed-width fields without padding,
// one after the other.

#ifndef TANDEM_RUNTIME_PROTOCOL_APPEND_BYTES_H_
#define TANDEM_RUNTIME_PROTOCOL_APPEND_BYTES_H_

#include <string>
#include <type_traits>

namespace tandem {

template <typename T>
void AppendBytes(T value, std::string* bytes) {
  static_assert(std::has_unique_object_representations_v<T>);
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_APPEND_BYTES_H_
