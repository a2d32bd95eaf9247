// Writes files so that a partly written file is never visible: the bytes go to a temporary file in the same folder,
// which is fsynced and renamed over the target; then the folder is fsynced. A crash at any moment leaves either the old
// or the new file.
//
//   AtomicFile file("out/loss.svg");
//   file.write(svg);
//   file.commit();          // without it, the destructor removes the temporary file
//
// Thread safety: none; one object per thread. Two writers of one target do not interfere: the last rename wins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo::io {

enum class Access {
  kByUmask,
  kOwner,  // others may neither read nor write
};

class AtomicFile {
 public:
  // Temporary files are named kTempPrefix + name + a suffix unique to process and call.
  static constexpr std::string_view kTempPrefix = ".tmp-";

  // All functions throw FileError, which names the target. The constructor also throws it if the target exists and is
  // not a regular file, such as /dev/null.
  explicit AtomicFile(std::string path, Access access = Access::kByUmask);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Overwrites bytes written before, e.g. a header whose counts are known last.
  void write_at(uint64_t offset, const void* data, size_t bytes);
  // Writes everything to the disk, so that commit() only has to rename. Useful for two files that belong together: a
  // full disk is found before either file is visible.
  void prepare();
  // Makes the file visible and durable. On error the temporary file is removed and the target is unchanged, unless only
  // the last fsync of the folder failed.
  void commit();
  // Makes the file visible without waiting for the disk: after a crash of the machine (not of the process) the target
  // may be damaged. For caches, which detect damage.
  void publish();

 private:
  void flush();
  void rename_over_target();
  void discard() noexcept;
  [[noreturn]] void fail(const char* what);

  std::string path_, temp_;
  std::string buffer_;
  int fd_ = -1;
};

// Writes `contents` to `path` through an AtomicFile.
void write_file_atomic(const std::string& path, std::string_view contents);
// Removes temporary files that killed processes left in `folder`. The owner of a folder calls it at startup. Files that
// cannot be removed stay.
void sweep_temporaries(const std::string& folder);
// Returns the names of all entries of `folder`, sorted; none if there is no such folder. Throws FileError if the folder
// cannot be read. (std::filesystem's iterators end the process when memory runs out.)
std::vector<std::string> list_folder(const std::string& folder);
// Makes renames and unlinks in `folder` durable.
void fsync_folder(const std::string& folder);
// Creates `folder` and its missing parents, durably.
void make_folders(const std::string& folder);

}  // namespace rondo::io
#pragma GCC visibility pop
