// One level of recursion of an Evaluator.
#pragma once

#include "absl/strings/str_cat.h"
#include "rondo/runtime/text/jinja/evaluator.h"

namespace rondo::text::jinja {

class Evaluator::Depth {
 public:
  Depth(Evaluator& evaluator, int line) : evaluator_(evaluator) {
    evaluator.line_ = line;
    if (++evaluator.depth_ > evaluator.options_.limits.depth) {
      --evaluator.depth_;
      throw Error(absl::StrCat("it recurses more than ", evaluator.options_.limits.depth, " deep"));
    }
  }
  ~Depth() { --evaluator_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Evaluator& evaluator_;
};

}  // namespace rondo::text::jinja
