// RONDO_DUMP=name,...: what each stage made, as text, to the log's sink. Names: "input", every pass (passes/pipeline.cc),
// "fuse" and "lower"; "all" is all of them.
#pragma once

#include <string>
#include <string_view>

namespace rondo::compile {

// Throws Error, which lists the names, the first time if RONDO_DUMP has another.
bool wants_dump(std::string_view stage);
// "---- stage" and the text.
void dump(std::string_view stage, const std::string& text);

}  // namespace rondo::compile
