// A folder for one test's files, removed with the object; and what file tests share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "rondo/runtime/base/error.h"
#include "rondo/tests/paths.h"

namespace rondo {

class TempFolder {
 public:
  TempFolder() {
    std::string name = testing::TempDir() + "/rondo-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw Error("cannot make a temporary folder");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  int entries() const { return static_cast<int>(std::distance(std::filesystem::directory_iterator(path_), {})); }

 private:
  std::string path_;
};

inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
// Overwrites one byte.
inline void poke(const std::string& path, size_t at, char byte) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

// `what` must throw a FileError that names `path` and says `reason`.
template <class F> void expect_file_error(const std::string& path, std::string_view reason, F&& what) {
  try {
    what();
    ADD_FAILURE() << "accepted; expected: " << reason;
  } catch (const FileError& error) {
    EXPECT_EQ(error.path(), path);
    EXPECT_NE(std::string_view(error.what()).find(path), std::string_view::npos) << error.what();
    EXPECT_NE(std::string_view(error.what()).find(reason), std::string_view::npos)
        << error.what() << "\nnot: " << reason;
  }
}

// Development data that lies outside the repository; empty if it is not there.
inline std::string shared_data(std::string_view name) {
  const std::string path = std::string(rondo::tests::kSourceDir) + "/../shared/data/" + std::string(name);
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace rondo
