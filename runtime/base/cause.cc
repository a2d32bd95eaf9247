#include "rondo/runtime/base/cause.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::memory {

std::atomic<int> detail::asks_for_causes{0};

std::string Cause::describe() {
  std::string text, place;
  std::string_view last;
  for (const Cause* c = innermost_; c != nullptr; c = c->outer_) {
    if (c->name_ != last || *c->prefix_ != 0)
      absl::StrAppend(&text, text.empty() ? "" : ", in ", c->prefix_, std::string(c->name_));
    last = c->name_;
    // The outermost place is nearest to the user's code.
    if (c->where_.line() != 0) place = describe_location(c->where_);
  }
  return text.empty() ? "outside of any op" : text + place;
}

}  // namespace rondo::memory
