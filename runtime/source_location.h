// <source_location>. Clang 14 lacks the builtin that GCC's library makes std::source_location of, so that there the
// class is missing: then it is made of older builtins.
#pragma once

#include <source_location>

#if defined(__clang__) && !defined(__cpp_lib_source_location)
#include <cstdint>

#pragma GCC visibility push(default)
namespace std {

struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(),
                                           const char* function = __builtin_FUNCTION(),
                                           uint_least32_t line = __builtin_LINE()) noexcept {
    source_location here;
    here.file_ = file;
    here.function_ = function;
    here.line_ = line;
    return here;
  }
  constexpr source_location() noexcept = default;
  constexpr uint_least32_t line() const noexcept { return line_; }
  constexpr uint_least32_t column() const noexcept { return 0; }
  constexpr const char* file_name() const noexcept { return file_; }
  constexpr const char* function_name() const noexcept { return function_; }

 private:
  const char* file_ = "";
  const char* function_ = "";
  uint_least32_t line_ = 0;
};

}  // namespace std
#pragma GCC visibility pop
#endif
