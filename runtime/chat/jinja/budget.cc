#include "rondo/runtime/chat/jinja/budget.h"

#include <pthread.h>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::text::jinja {
namespace {

struct Bounds {
  uintptr_t low = 0, high = 0;
};

// Returns the bounds of this thread's stack; {0, 0} if they are not known.
Bounds stack_bounds() noexcept {
#ifdef __linux__
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* low = nullptr;
  size_t size = 0;
  const bool known = pthread_attr_getstack(&attributes, &low, &size) == 0;
  pthread_attr_destroy(&attributes);
  if (known) return {reinterpret_cast<uintptr_t>(low), reinterpret_cast<uintptr_t>(low) + size};
#endif
  return {};
}

uintptr_t lowest_frame(uintptr_t top, size_t limit) {
  static thread_local const Bounds bounds = stack_bounds();
  const uintptr_t by_limit = top - std::min<uintptr_t>(top, limit);
  // A fiber runs on a stack of its own, which the system does not know.
  if (top < bounds.low || top >= bounds.high) return by_limit;
  return std::max(by_limit, bounds.low + Budget::kReserve);
}

}  // namespace

Budget::Budget(const Limits& limits, size_t held, std::stop_token stop, Used* used)
    : limits_(limits),
      stop_(std::move(stop)),
      used_(used),
      outer_(current_),
      top_(here()),
      lowest_(lowest_frame(top_, limits.stack)),
      deepest_(top_),
      left_(limits.steps),
      held_(held),
      most_held_(held) {
  current_ = this;
}

Budget::~Budget() {
  current_ = outer_;
  if (used_ != nullptr) *used_ = {.steps = limits_.steps - left_, .bytes = most_held_, .stack = top_ - deepest_};
}

void Budget::take(size_t bytes, uint64_t count) {
  if (current_ == nullptr) return;
  expect(1, bytes + kBlock);
  current_->spend(count);
  current_->held_ += bytes + kBlock;
  current_->most_held_ = std::max(current_->most_held_, current_->held_);
}

void Budget::fail_work() {
  if (stop_.stop_requested()) {
    cancelled_ = true;
    throw Error("it is cancelled");
  }
  throw Error(
      absl::StrCat("it takes too many steps: the limit that keeps templates from running forever is ", limits_.steps));
}

void Budget::fail_bytes() {
  throw Error(absl::StrCat("it needs more memory than the limit of ", current_->limits_.bytes, " bytes"));
}

void Budget::fail_stack() {
  const uintptr_t top = current_->top_, lowest = current_->lowest_;
  throw Error(absl::StrCat("it recurses too deep: it takes more than the ", top > lowest ? (top - lowest) / 1024 : 0,
                           " KiB of this thread's stack that it may use"));
}

}  // namespace rondo::text::jinja
