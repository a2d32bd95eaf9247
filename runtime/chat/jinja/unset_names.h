// Finds the names that are undefined in a body of a template until the body sets them. See unset_names.cc.
#pragma once

#include "rondo/runtime/chat/jinja/syntax.h"

namespace rondo::text::jinja {

// Fills in every `unset` of the tree. Throws Error if the budget is used up.
void find_unset_names(Parsed& parsed);

}  // namespace rondo::text::jinja
