// Reads what to_string(Graph) writes.
#pragma once

#include <span>
#include <string_view>

#include "rondo/compile/ir/graph.h"
#include "rondo/compile/ir/scanner.h"

namespace rondo::compile {

// Parses a graph. It equals the printed one, except for fields that no stage of the compiler reads (GraphNode::where
// and origin, Value::grad_mode). It is not verified. Throws Error "line 3: what" if the text is not a graph or names an
// op that is neither Rondo's nor one of `own` (the program's ops).
using OpList = std::span<const OpDef* const>;
Graph parse_graph(std::string_view text, OpList own = {});
// Parses one graph, up to and including its "return", from the middle of a file.
Graph parse_graph(Scanner& in, OpList own = {});

}  // namespace rondo::compile
