// What own_names.h makes of libraries (named.cc) that linkers laid out in several ways.   names LIBRARY...
#include <dlfcn.h>

#include <cstdio>

#include "rondo/runtime/onednn/own_names.h"

// The program's own, which the dynamic linker meets first.
#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int rondo_shared_function() { return 2; }
EXPORTED int rondo_shared_variable;
int rondo_shared_variable = 2;

namespace {

int minus_one(int) { return -1; }
int three() { return 3; }

int failures = 0;
void expect(bool holds, const char* library, const char* what) {
  if (holds) return;
  std::printf("FAILED: %s: %s\n", library, what);
  ++failures;
}

void look_at(const char* name) {
  using rondo::cpu::function_used;
  using rondo::cpu::use_instead;
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return expect(false, name, dlerror());
  const auto expect_all = [&](int value, const char* what) {
    for (const char* way : {"rondo_by_call", "rondo_by_constant", "rondo_by_pointer", "rondo_by_variable"})
      expect(reinterpret_cast<int (*)()>(dlsym(library, way))() == value, name, what);
  };
  const auto absolute = reinterpret_cast<int (*)(int)>(dlsym(library, "rondo_absolute"));
  auto& changed = *reinterpret_cast<int (**)()>(dlsym(library, "rondo_changed"));
  expect_all(2, "the program's names come first");
  changed = &three;
  for (int repeat = 0; repeat < 2; ++repeat) {
    rondo::cpu::use_own_names(library);
    expect_all(1, "it uses its own names");
  }
  expect(changed == &three, name, "a variable keeps its value");
  expect(function_used(library, "abs") == dlsym(RTLD_DEFAULT, "abs") && absolute(-3) == 3, name,
         "it uses the C library");
  use_instead(library, "abs", reinterpret_cast<void*>(&minus_one));
  expect(absolute(-3) == -1, name, "it uses what is there instead");
  for (const char* other : {"labs", "rondo_shared_function"}) {
    expect(function_used(library, other) == nullptr, name, "it does not take this from others");
    use_instead(library, other, reinterpret_cast<void*>(&minus_one));
  }
  expect_all(1, "all else is as before");
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) look_at(argv[i]);
  return failures == 0 && argc > 1 ? 0 : 1;
}
