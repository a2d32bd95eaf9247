// The name that error messages give to a call, for an op whose work another op does.
//
//   Tensor conv1d(...) {
//     const CalledAs name("conv1d", "conv2d");     // errors about conv2d say conv1d
//     return squeeze(call(kConv2d, ...), 2);
//   }
//
// A CalledAs holds for its scope and thread. If scopes nest, the inner scope renames the op first, and the outer scope
// renames the result.
#pragma once

#include <string_view>

namespace rondo {

class CalledAs {
 public:
  // Both texts must outlive this object.
  CalledAs(std::string_view called, std::string_view op);
  ~CalledAs();
  CalledAs(const CalledAs&) = delete;
  CalledAs& operator=(const CalledAs&) = delete;
  // Returns the name that an error message gives to `op`: that of the call that the user made.
  static std::string_view name_of(std::string_view op);

 private:
  const std::string_view called_, op_;
  const CalledAs* const outer_;
};

}  // namespace rondo
