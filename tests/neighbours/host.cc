// Runs main() of a plug-in, whose names nobody else gets.   host PLUGIN ARGUMENTS...
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  void* const plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  void* const function = plugin != nullptr ? dlsym(plugin, "main") : nullptr;
  if (function == nullptr) {
    std::printf("FAILED: %s\n", argc > 1 ? dlerror() : "host PLUGIN ARGUMENTS...");
    return 1;
  }
  const int result = reinterpret_cast<int (*)(int, char**)>(function)(argc - 1, argv + 1);
  dlclose(plugin);
  return result;
}
