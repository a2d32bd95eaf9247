// A library for names.cc. It uses a function and a variable of its own that the program has, too, and one of the C
// library's.
#include <cstdlib>

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int rondo_shared_function() { return 1; }
EXPORTED int rondo_shared_variable;
int rondo_shared_variable = 1;
EXPORTED int (*const rondo_constant)();
int (*const rondo_constant)() = &rondo_shared_function;
EXPORTED int (*rondo_pointer)();
int (*rondo_pointer)() = &rondo_shared_function;
EXPORTED int (*rondo_changed)();
int (*rondo_changed)() = &rondo_shared_function;

EXPORTED int rondo_by_call() { return rondo_shared_function(); }
EXPORTED int rondo_by_constant() { return rondo_constant(); }
EXPORTED int rondo_by_pointer() { return rondo_pointer(); }
EXPORTED int rondo_by_variable() { return rondo_shared_variable; }
EXPORTED int rondo_absolute(int number) {
  int (*const volatile function)(int) = &std::abs;
  return function(number);
}
