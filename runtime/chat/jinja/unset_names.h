// Which names the bodies of a template own. See unset_names.cc.
#pragma once

#include "rondo/runtime/chat/jinja/syntax.h"

namespace rondo::text::jinja {

// Fills in every `unset`. Throws Error of the budget.
void find_unset_names(Parsed& parsed);

}  // namespace rondo::text::jinja
