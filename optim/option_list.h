// OptionList: every option of an optimizer by its name, for state dicts and for the comparison of processes. A list
// that lacks a member of the options' struct does not compile.
//
//   static constexpr OptionList kOptions{Option{"lr", &LionOptions::lr}, Option{"beta", &LionOptions::betas},
//                                        Option{"maximize", &LionOptions::maximize, Saved::kLater}, ...};
//
// Options are visited as numbers. An array is visited by element: "beta1", "beta2". A bool is 0 or 1. An enum is its
// position in option_values(). A number that is no value of an option leaves the option unchanged.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "rondo/optim/formula.h"
#include "rondo/runtime/base/dtype.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

enum class Saved : uint8_t {
  kAlways,  // in every file
  kLater,   // files of earlier versions lack it. If so, the optimizer keeps its own value
  kNever,   // not saved: the tensors in the file show the value
};

using OptionVisitor = absl::FunctionRef<void(std::string_view name, Saved saved, double& value)>;

// The values of an enum, in the order of their numbers in files: append only.
constexpr std::array<StateFormat, 3> option_values(StateFormat) {
  return {StateFormat::kFull, StateFormat::kBF16, StateFormat::k8Bit};
}
constexpr std::array<DType, 4> option_values(DType) { return {kF64, kF32, kBF16, kF16}; }

template <class Options, class T> struct Option {
  constexpr Option(const char* name, T Options::*member, Saved saved = Saved::kAlways)
      : name(name), member(member), saved(saved) {}
  const char* name;
  T Options::*member;
  Saved saved;
};

namespace option_detail {

struct AnyMember {
  template <class T> operator T() const;  // NOLINT: never called
};
template <class T, size_t... I> constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), AnyMember{})...}; };
}
// Returns the number of members of an aggregate: the largest number of initialisers that it accepts.
template <class T, size_t kMost = 24> constexpr size_t members_of() {
  if constexpr (takes<T>(std::make_index_sequence<kMost>{})) return kMost;
  else return members_of<T, kMost - 1>();
}

template <class T> double number_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    constexpr auto values = option_values(T{});
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] == value) return static_cast<double>(i);
    return -1;
  } else {
    return static_cast<double>(value);
  }
}

template <class T> void set_number(T& value, double number) {
  if constexpr (std::is_enum_v<T>) {
    constexpr auto values = option_values(T{});
    for (size_t i = 0; i < values.size(); ++i)
      if (number == static_cast<double>(i)) value = values[i];
  } else if constexpr (std::is_same_v<T, bool>) {
    if (number == 0 || number == 1) value = number == 1;
  } else {
    static_assert(std::is_same_v<T, int>);
    constexpr double kLeast = std::numeric_limits<int>::min(), kMost = std::numeric_limits<int>::max();
    if (number >= kLeast && number <= kMost && number == std::trunc(number)) value = static_cast<int>(number);
  }
}

}  // namespace option_detail

// An option missing from its list would be neither saved nor compared.
template <class Options, class... T>
concept NamesEveryMember = sizeof...(T) == option_detail::members_of<Options>();

template <class Options, class... T> class OptionList {
 public:
  constexpr explicit OptionList(Option<Options, T>... options) requires NamesEveryMember<Options, T...>
      : options_(options...) {}
  // Passes each option to the visitor as a double, and stores in the option what the visitor leaves there.
  void visit(Options& o, OptionVisitor visitor) const {
    std::apply([&](const auto&... option) { (visit_one(option, o.*option.member, visitor), ...); }, options_);
  }

 private:
  template <class Entry, class V> static void visit_one(const Entry& entry, V& value, OptionVisitor visitor) {
    if constexpr (requires { value.size(); }) {
      for (size_t i = 0; i < value.size(); ++i) visitor(entry.name + std::to_string(i + 1), entry.saved, value[i]);
    } else if constexpr (std::is_same_v<V, double>) {
      visitor(entry.name, entry.saved, value);
    } else {
      double number = option_detail::number_of(value);
      visitor(entry.name, entry.saved, number);
      option_detail::set_number(value, number);
    }
  }

  std::tuple<Option<Options, T>...> options_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
