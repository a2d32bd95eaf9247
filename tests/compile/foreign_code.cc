// A library that must never be loaded: its constructor runs before anybody can ask what it is. It leaves a file.
#include <cstdio>
#include <cstdlib>

namespace {

struct Ran {
  Ran() {
    if (const char* path = std::getenv("RONDO_TEST_FOREIGN"))
      if (std::FILE* file = std::fopen(path, "w")) std::fclose(file);
  }
} const ran;

}  // namespace
