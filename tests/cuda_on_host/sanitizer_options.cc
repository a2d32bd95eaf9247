// Options of the sanitizers in programs where kernels are compiled with one and all else is not.

// What the library copies and clears is no access of a kernel, and the order of its threads cannot be seen.
extern "C" const char* __tsan_default_options() { return "ignore_interceptors_accesses=1"; }
