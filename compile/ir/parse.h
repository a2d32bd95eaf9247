// Reads what to_string(Graph) writes.
#pragma once

#include <span>
#include <string_view>

#include "rondo/compile/ir/graph.h"
#include "rondo/compile/ir/scanner.h"

namespace rondo::compile {

// The graph that `text` spells: the printed one, but for what no stage of the compiler reads (GraphNode::where and
// origin, Value::grad_mode). Not verified. Throws Error "line 3: what" where the text is not a graph or names an op
// that is neither Rondo's nor one of `own`: ops of the program's own.
using OpList = std::span<const OpDef* const>;
Graph parse_graph(std::string_view text, OpList own = {});
// One graph, up to and including its "return", from the middle of a file.
Graph parse_graph(Scanner& in, OpList own = {});

}  // namespace rondo::compile
