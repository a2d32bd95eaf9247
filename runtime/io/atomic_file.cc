#include "rondo/runtime/io/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::io {
namespace {

constexpr size_t kBuffer = 256 << 10;

std::string errno_reason(const char* what, int error = errno) {
  return absl::StrCat(what, ": ", std::generic_category().message(error));
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Returns true if the process is running, and also if that cannot be found out.
bool is_running(pid_t process) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat("/proc/", process), error) ||
         !std::filesystem::exists("/proc/self", error);
}

// Returns 0 or the errno of the failed call.
int write_all(int fd, const char* data, size_t bytes, int64_t offset = -1) {
  while (bytes > 0) {
    const ssize_t n = offset < 0 ? ::write(fd, data, bytes) : ::pwrite(fd, data, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENOSPC;
    data += n;
    bytes -= static_cast<size_t>(n);
    if (offset >= 0) offset += n;
  }
  return 0;
}

}  // namespace

AtomicFile::AtomicFile(std::string path, Access access) try : path_(std::move(path)) {
  check_path(path_);
  static std::atomic<uint64_t> counter{0};
  const std::filesystem::path target(path_);
  if (target.filename().empty()) throw FileError(path_, "cannot write: the path names a folder");
  // Without this check, the rename would replace a device or a pipe by a file: /dev/null, for example, if the process
  // runs as root.
  std::error_code unknown;
  const std::filesystem::file_status old = std::filesystem::status(target, unknown);
  if (std::filesystem::exists(old) && !std::filesystem::is_regular_file(old) && !std::filesystem::is_directory(old))
    throw FileError(path_, "cannot write: is not a regular file");
  for (;;) {
    temp_ = absl::StrCat(folder_of(path_), "/", std::string(kTempPrefix), target.filename().string(), ".", ::getpid(),
                         ".", counter.fetch_add(1));
    fd_ = ::open(temp_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, access == Access::kOwner ? 0600 : 0666);
    if (fd_ >= 0) break;
    // An earlier process that had the same process id may have been killed and left this file. Then the next name is
    // tried.
    if (errno != EEXIST) throw FileError(path_, errno_reason("cannot create a temporary file beside it"));
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory("AtomicFile");
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) ::close(fd_);
  if (!temp_.empty()) ::unlink(temp_.c_str());
  fd_ = -1;
  temp_.clear();
}

void AtomicFile::fail(const char* what) {
  const std::string reason = errno_reason(what);
  discard();
  throw FileError(path_, reason);
}

void AtomicFile::write(const void* data, size_t bytes) try {
  if (fd_ < 0) throw FileError(path_, "write: the file is committed or has failed");
  if (buffer_.size() + bytes <= kBuffer) {
    buffer_.append(static_cast<const char*>(data), bytes);
    return;
  }
  flush();
  if (bytes < kBuffer) {
    buffer_.assign(static_cast<const char*>(data), bytes);
  } else if ((errno = write_all(fd_, static_cast<const char*>(data), bytes)) != 0) {
    fail("cannot write");
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory("AtomicFile");
}

void AtomicFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  flush();
  if ((errno = write_all(fd_, static_cast<const char*>(data), bytes, static_cast<int64_t>(offset))) != 0)
    fail("cannot write");
}

void AtomicFile::flush() {
  if (fd_ < 0) throw FileError(path_, "write: the file is committed or has failed");
  if ((errno = write_all(fd_, buffer_.data(), buffer_.size())) != 0) fail("cannot write");
  buffer_.clear();
}

void AtomicFile::prepare() {
  flush();
  if (::fsync(fd_) != 0) fail("cannot fsync");
}

void AtomicFile::commit() try {
  prepare();
  rename_over_target();
  fsync_folder(folder_of(path_));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("AtomicFile");
}

void AtomicFile::publish() {
  flush();
  rename_over_target();
}

void AtomicFile::rename_over_target() {
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail("cannot close");
  if (::rename(temp_.c_str(), path_.c_str()) != 0) fail("cannot rename onto it");
  temp_.clear();
}

void write_file_atomic(const std::string& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

std::vector<std::string> list_folder(const std::string& folder) try {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(folder.c_str()), ::closedir);
  if (list == nullptr && errno == ENOENT) return names;
  if (list == nullptr && errno == ENOMEM) throw std::bad_alloc();
  if (list == nullptr) throw FileError(folder, errno_reason("cannot list the folder"));
  for (errno = 0; const dirent* const entry = ::readdir(list.get()); errno = 0)
    if (const std::string_view name = entry->d_name; name != "." && name != "..") names.emplace_back(name);
  if (errno != 0) throw FileError(folder, errno_reason("cannot list the folder"));
  std::sort(names.begin(), names.end());
  return names;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("list_folder");
}

void sweep_temporaries(const std::string& folder) try {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  try {
    names = list_folder(folder);
  } catch (const FileError&) {
    return;
  }
  for (const std::string& name : names) {
    if (!name.starts_with(AtomicFile::kTempPrefix)) continue;
    // The name ends in .PID.COUNTER: the process id of its writer, and a number.
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    pid_t writer = 0;
    const fs::path path = fs::path(folder) / name;
    std::error_code ignored;
    if (parts.size() > 3 && absl::SimpleAtoi(parts[parts.size() - 2], &writer) && writer > 0) {
      if (is_running(writer)) continue;
    } else if (fs::file_time_type::clock::now() - fs::last_write_time(path, ignored) < std::chrono::hours(1)) {
      continue;  // the writer is not known and may still be at work
    }
    if (fs::is_regular_file(fs::symlink_status(path, ignored))) fs::remove(path, ignored);
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory("sweep_temporaries");
}

void fsync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw FileError(folder, errno_reason("cannot open the folder"));
  const int error = ::fsync(fd) != 0 ? errno : 0;
  ::close(fd);
  // Some file systems cannot fsync a folder and return EINVAL. On these the rename cannot be made more durable.
  if (error != 0 && error != EINVAL) throw FileError(folder, errno_reason("cannot fsync the folder", error));
}

void make_folders(const std::string& folder) try {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  const fs::path clean = fs::path(folder).lexically_normal();
  const fs::path path = clean.has_filename() ? clean : clean.parent_path();
  if (path.has_parent_path()) make_folders(path.parent_path().string());
  if (!fs::create_directory(path, error) && error) throw FileError(folder, "cannot create: " + error.message());
  fsync_folder(folder_of(path.string()));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("make_folders");
}

}  // namespace rondo::io
