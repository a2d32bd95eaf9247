// Finds and opens one of CUDA's libraries: Note [Finding CUDA] in driver.h. Other folders call it for libraries that
// only they use (NCCL: dist/groups/nccl_library.h).
#pragma once

#include <initializer_list>
#include <string>

namespace rondo::cuda {

// `name` has no version: "libnvrtc.so". `versions`: the best one first. Returns the handle of dlopen, which is never
// closed, and the file in `*path`; null, and the reason in one line in `*why_not`, if there is none.
void* open_library(const char* name, std::initializer_list<const char*> versions, std::string* path,
                   std::string* why_not);

}  // namespace rondo::cuda
