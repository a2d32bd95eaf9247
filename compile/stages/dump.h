// RONDO_DUMP=name,...: what each stage made, as text, to the log's sink. Names: "input", every pass
// (transform/pipeline.cc), "fuse" and "lower"; "all" is all of them.
#pragma once

#include <string>
#include <string_view>

namespace rondo::compile {

// Throws Error, which lists the names, the first time if RONDO_DUMP has another.
bool wants_dump(std::string_view stage);
// While one is there, this thread wants none: what it makes is only compared with something.
class DumpsOff {
 public:
  DumpsOff();
  ~DumpsOff();
  DumpsOff(const DumpsOff&) = delete;
  DumpsOff& operator=(const DumpsOff&) = delete;

 private:
  bool outer_;
};
// "---- stage" and the text.
void dump(std::string_view stage, const std::string& text);

}  // namespace rondo::compile
