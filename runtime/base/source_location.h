// <source_location>, also for Clang 14, which lacks a builtin that the standard header needs. For Clang 14 the class is
// defined here in the layout of GCC's library, so that a program compiled with Clang 14 can use a Rondo library that
// another compiler built.
#pragma once

#include <source_location>

#if defined(__clang__) && !defined(__cpp_lib_source_location)
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

#pragma GCC visibility push(default)
namespace std {

class source_location {
 public:
  constexpr source_location() noexcept = default;
  static source_location current(const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
                                 uint_least32_t line = __builtin_LINE()) noexcept {
    source_location here;
    here.place_ = place(file, function, line);
    return here;
  }
  uint_least32_t line() const noexcept { return place_ == nullptr ? 0 : place_->line; }
  uint_least32_t column() const noexcept { return 0; }
  const char* file_name() const noexcept { return place_ == nullptr ? "" : place_->file; }
  const char* function_name() const noexcept { return place_ == nullptr ? "" : place_->function; }

 private:
  struct Place {
    const char* file;
    const char* function;
    unsigned line, column;
  };
  // Returns the record of a place in the program. The record is made once and never freed, like a constant.
  static const Place* place(const char* file, const char* function, uint_least32_t line) {
    thread_local const Place* recent[64] = {};
    const Place*& slot = recent[(reinterpret_cast<uintptr_t>(function) / 8 + line) % 64];
    if (slot != nullptr && slot->file == file && slot->function == function && slot->line == line) return slot;
    static mutex guard;
    static auto* const places = new map<tuple<const char*, const char*, unsigned>, Place>;
    const lock_guard lock(guard);
    return slot = &places->try_emplace({file, function, line}, Place{file, function, line, 0}).first->second;
  }
  const Place* place_ = nullptr;
};

}  // namespace std
#pragma GCC visibility pop
#endif
