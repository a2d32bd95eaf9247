// Budget: how much work, memory and stack a template may use. Everything is charged here, before the template gets it.
//
//   Budget budget(limits);            // in force on this thread until it is destroyed
//   Text text; text += more;          // charged by its allocator: bytes, and the work of filling them
//   Budget::step();                   // for each node, item or call; also checks the stack and the stop token
//
// Memory: all data that a template can make large is a Text or a List or is made by shared(), so no filter can bypass
// the limit. Freed bytes are no longer counted. Work: every function that recurses or runs once per item begins with
// step(), and the functions on text (python_text.h) charge the bytes that they read. An operation that costs more than
// it charges is a bug.
//
// Without a budget in force nothing is charged, so values that a caller makes before a render are free.
// Thread safety: a budget belongs to the thread that made it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace rondo::text::jinja {

struct Limits {
  // Work. A step is at most about 100 ns: a node of the template, an item, 4 bytes of text processed as
  // characters, 64 bytes copied.
  uint64_t steps = 20'000'000;
  // Memory at any one time: the template, its values and its output. Values that the caller made do not count.
  size_t bytes = size_t{128} << 20;
  // Bytes of the calling thread's stack, below the call. The limit is lower if the thread has less left: Note [Stack].
  size_t stack = size_t{256} << 10;
  // Bytes of a template's source. The parsed tree takes up to 200 times as many.
  size_t source = size_t{256} << 10;
};

// The work, memory and stack that a render has used. `bytes` and `stack`: the most at any one time.
struct Used {
  uint64_t steps = 0;
  size_t bytes = 0, stack = 0;
};

// Note [Stack]: templates recurse natively, so step() compares the address of its frame with the lowest one allowed:
// `Limits::stack` below the call, and kReserve above the end of the thread's stack, if the system reports that end.
// Freeing nested values, which recurses without step(), and functions such as the C library's formatting need less than
// kReserve (the test TemplateStack measures it).
class Budget {
 public:
  static constexpr size_t kReserve = size_t{48} << 10;

  // `held`: bytes that are in use from the start. `used`: filled in at the end, also after an error.
  explicit Budget(const Limits& limits, size_t held = 0, std::stop_token stop = {}, Used* used = nullptr);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // Charges one step. This and the functions below throw Error if the budget has too little left, or if
  // a stop is requested.
  static void step() {
    if (current_ == nullptr) return;
    const uintptr_t at = here();
    if (at < current_->lowest_) [[unlikely]]
      fail_stack();
    current_->deepest_ = std::min(current_->deepest_, at);
    current_->spend(1);
  }
  static void steps(uint64_t count) {
    if (current_ != nullptr) current_->spend(count);
  }
  // read(): for text that the C++ library's fast functions compare or scan. convert(): for text that is processed
  // character by character.
  static void read(size_t bytes) {
    if (bytes >= 64) steps(bytes / 64);
  }
  static void convert(size_t bytes) { steps(bytes / 4); }
  // Call this before an allocation if the template sets its size. Throws if `count` times `bytes` is more memory than
  // the budget has left.
  static void expect(uint64_t count, size_t bytes) {
    if (current_ != nullptr && bytes != 0 && count > current_->bytes_left() / bytes) fail_bytes();
  }

  size_t held() const { return held_; }
  bool cancelled() const { return cancelled_; }

 private:
  template <class> friend struct Charged;

  static uintptr_t here() { return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); }
  size_t bytes_left() const { return limits_.bytes - std::min(limits_.bytes, held_); }
  void spend(uint64_t count) {
    if (count > left_ || stop_.stop_requested()) [[unlikely]]
      fail_work();
    left_ -= count;
  }
  // The bytes that the heap adds to each block of memory.
  static constexpr size_t kBlock = 16;
  static void take(size_t bytes, uint64_t count);
  static void give(size_t bytes) noexcept {
    if (current_ != nullptr) current_->held_ -= std::min(current_->held_, bytes + kBlock);
  }
  [[noreturn]] void fail_work();
  [[noreturn]] static void fail_bytes();
  [[noreturn]] static void fail_stack();

  const Limits limits_;
  const std::stop_token stop_;
  Used* const used_;
  Budget* const outer_;
  const uintptr_t top_;
  uintptr_t lowest_, deepest_;
  uint64_t left_;
  size_t held_, most_held_;
  bool cancelled_ = false;
  static inline thread_local Budget* current_ = nullptr;
};

// The allocator of everything that a render makes.
template <class T> struct Charged {
  using value_type = T;
  Charged() = default;
  template <class U> Charged(const Charged<U>&) noexcept {}
  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);  // does not overflow: containers check max_size() first
    Budget::take(bytes, 1 + bytes / (sizeof(T) == 1 ? 64 : 32));
    try {
      return std::allocator<T>().allocate(count);
    } catch (...) {
      Budget::give(bytes);
      throw;
    }
  }
  void deallocate(T* data, size_t count) noexcept {
    Budget::give(count * sizeof(T));
    std::allocator<T>().deallocate(data, count);
  }
  template <class U> friend bool operator==(const Charged&, const Charged<U>&) noexcept { return true; }
};

using Text = std::basic_string<char, std::char_traits<char>, Charged<char>>;
template <class T> using List = std::vector<T, Charged<T>>;
template <class T, class... Args> std::shared_ptr<T> shared(Args&&... args) {
  return std::allocate_shared<T>(Charged<T>(), std::forward<Args>(args)...);
}

// Base class of the nodes of a template's tree: `new` charges the memory of a node.
struct ChargedNode {
  static void* operator new(size_t bytes) { return Charged<std::byte>().allocate(bytes); }
  static void operator delete(void* node, size_t bytes) noexcept {
    Charged<std::byte>().deallocate(static_cast<std::byte*>(node), bytes);
  }
};

}  // namespace rondo::text::jinja
