// Switches between a scheduler and its fibers, announced to the address sanitizer, which else takes
// another stack for a wild pointer, and what is left on it for live
// (sanitizer/common_interface_defs.h). Without it they are nothing.

#ifndef TANDEM_KERNELS_CUDA_EMULATED_FIBER_SWITCH_H_
#define TANDEM_KERNELS_CUDA_EMULATED_FIBER_SWITCH_H_

#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace tandem::emulated {

struct StackBounds {
  const void* bottom = nullptr;
  size_t bytes = 0;
};

#if defined(__SANITIZE_ADDRESS__)

// Frames have guards between their variables, and are several times as large.
inline constexpr bool kFramesAreGuarded = true;

// Made before the stack `to` goes on; it ends when the stack that it was made on does, be it by an
// exception.
class FiberSwitch {
 public:
  explicit FiberSwitch(const StackBounds& to) {
    __sanitizer_start_switch_fiber(&fake_stack_, to.bottom, to.bytes);
  }
  ~FiberSwitch() { __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr); }
  FiberSwitch(const FiberSwitch&) = delete;
  FiberSwitch& operator=(const FiberSwitch&) = delete;

  // The first that a fiber does; where it was switched from.
  static StackBounds ArriveFirst() {
    StackBounds from;
    __sanitizer_finish_switch_fiber(nullptr, &from.bottom, &from.bytes);
    return from;
  }

 private:
  void* fake_stack_ = nullptr;
};

// Made on a fiber; the fiber ends with it.
class LastFiberSwitch {
 public:
  explicit LastFiberSwitch(const StackBounds* to) : to_(to) {}
  ~LastFiberSwitch() { __sanitizer_start_switch_fiber(nullptr, to_->bottom, to_->bytes); }
  LastFiberSwitch(const LastFiberSwitch&) = delete;
  LastFiberSwitch& operator=(const LastFiberSwitch&) = delete;

 private:
  const StackBounds* const to_;
};

#else

inline constexpr bool kFramesAreGuarded = false;

class FiberSwitch {
 public:
  explicit FiberSwitch(const StackBounds&) {}
  static StackBounds ArriveFirst() { return {}; }
};
class LastFiberSwitch {
 public:
  explicit LastFiberSwitch(const StackBounds*) {}
};

#endif

// Says where the stack that it hands out lies.
struct NotingStacks {
  boost::context::pooled_fixedsize_stack* stacks;
  StackBounds* noted;

  boost::context::stack_context allocate() {
    boost::context::stack_context stack = stacks->allocate();
    *noted = {.bottom = static_cast<std::byte*>(stack.sp) - stack.size, .bytes = stack.size};
    return stack;
  }
  void deallocate(boost::context::stack_context& stack) { stacks->deallocate(stack); }
};

}  // namespace tandem::emulated

#endif  // TANDEM_KERNELS_CUDA_EMULATED_FIBER_SWITCH_H_
