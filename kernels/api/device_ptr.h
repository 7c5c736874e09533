// Addresses in a backend's memory.
//
// The host cannot follow a DevicePtr: it adds to it, compares it with null and hands it back to the
// backend that it came from. Only kernels/ knows whether such an address is one of the host
// (kernels/support/host_args.h).

#ifndef TANDEM_KERNELS_API_DEVICE_PTR_H_
#define TANDEM_KERNELS_API_DEVICE_PTR_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tandem {

template <typename T>
class DevicePtr {
 public:
  constexpr DevicePtr() = default;
  constexpr DevicePtr(std::nullptr_t) {}  // NOLINT: as pointers convert.
  template <typename U>
  requires(!std::is_same_v<T, U> && std::is_convertible_v<U*, T*>) constexpr DevicePtr(
      DevicePtr<U> other)  // NOLINT: as pointers convert.
      : address_(other.address()) {}
  // For backends.
  static constexpr DevicePtr At(uintptr_t address) {
    DevicePtr pointer;
    pointer.address_ = address;
    return pointer;
  }

  constexpr uintptr_t address() const { return address_; }

  template <typename U>
  constexpr DevicePtr<U> as() const {
    return DevicePtr<U>::At(address_);
  }
  constexpr DevicePtr operator+(std::ptrdiff_t elements) const requires(!std::is_void_v<T>) {
    return At(address_ + static_cast<uintptr_t>(elements) * sizeof(T));
  }

  friend constexpr bool operator==(DevicePtr, DevicePtr) = default;
  friend constexpr bool operator==(DevicePtr pointer, std::nullptr_t) {
    return pointer.address_ == 0;
  }

 private:
  uintptr_t address_ = 0;
};

// Arguments of operations are written once, for either kind of pointer.
template <typename T>
using HostPtr = T*;

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_DEVICE_PTR_H_
