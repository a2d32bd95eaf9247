// Tells a compiled region whether it is called in a decode step. This header is not installed; users include
// kv_cache.h.
#pragma once

namespace rondo::nn {

// True while a pass of one token lives on this thread (Note [Decode steps] in kv_cache.h). A block then takes a cache,
// so its arguments are not those that CompileOptions::dynamic describes.
bool in_decode_step();

}  // namespace rondo::nn
