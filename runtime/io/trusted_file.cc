#include "rondo/runtime/io/trusted_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace rondo::io {
namespace {

constexpr off_t kMaxFileBytes = off_t{1} << 30;
constexpr int kMaxLinks = 40;  // symbolic links on one path, as in the Linux kernel

std::string errno_text() { return std::generic_category().message(errno); }

absl::Status cannot_open(const std::string& path) {
  if (errno == ENOENT) return absl::NotFoundError("no such file");
  return absl::PermissionDeniedError(absl::StrCat(path, ": ", errno_text()));
}

// Returns "" if nobody else may change the open file or folder, else the reason. With `sticky`, a folder with the
// sticky bit is also safe: Note [Trusted paths].
std::string distrust(int fd, bool sticky) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return absl::StrCat("cannot examine it: ", errno_text());
  if (info.st_uid != ::geteuid() && info.st_uid != 0) return absl::StrCat("it belongs to user ", info.st_uid);
  if (sticky && (info.st_mode & S_ISVTX) != 0) return "";
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others than its owner may write to it (chmod go-w)";
  return "";
}

absl::StatusOr<std::string> read_all(int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return absl::PermissionDeniedError(errno_text());
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("no regular file");
  if (info.st_size > kMaxFileBytes) return absl::InvalidArgumentError("too large");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::PermissionDeniedError(errno_text());
    if (n == 0) break;  // truncated meanwhile: the caller checks the contents
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

// Walks a path: Note [Trusted paths].
class Walk {
 public:
  ~Walk() {
    if (folder_ >= 0) ::close(folder_);
  }

  // Returns the descriptor of the open file, which the caller closes.
  absl::StatusOr<int> run(const std::string& path) {
    if (!path.starts_with('/')) return absl::PermissionDeniedError("the path is not absolute");
    rest_ = path;
    if (absl::Status status = go_to_root(); !status.ok()) return status;
    for (;;) {
      rest_.erase(0, rest_.find_first_not_of('/'));
      const std::string name = rest_.substr(0, rest_.find('/'));
      if (name.empty()) return absl::InvalidArgumentError("no regular file");
      rest_.erase(0, name.size());
      const std::string here = at_ + "/" + name;
      // O_PATH needs no read permission and never waits; with O_NOFOLLOW it opens a link itself.
      const int next = ::openat(folder_, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
      if (next < 0) return cannot_open(here);
      absl::Cleanup close = [next] { ::close(next); };
      struct stat info;
      if (::fstat(next, &info) != 0) return absl::PermissionDeniedError(errno_text());
      if (S_ISLNK(info.st_mode)) {
        if (absl::Status status = follow(next, info.st_uid, here); !status.ok()) return status;
      } else if (S_ISDIR(info.st_mode)) {
        if (absl::Status status = check_folder(next, here, true); !status.ok()) return status;
        std::move(close).Cancel();
        ::close(folder_);
        folder_ = next;
        at_ = here;
      } else {
        if (!S_ISREG(info.st_mode) || !rest_.empty()) return absl::InvalidArgumentError(here + ": no regular file");
        // The folder of the file must be as safe as the folders above it.
        if (absl::Status status = check_folder(folder_, at_, false); !status.ok()) return status;
        if (const std::string reason = distrust(next, false); !reason.empty())
          return absl::PermissionDeniedError(reason);
        const int file = ::open(absl::StrCat("/proc/self/fd/", next).c_str(), O_RDONLY | O_CLOEXEC);
        return file < 0 ? absl::StatusOr<int>(cannot_open(here)) : file;
      }
    }
  }

 private:
  absl::Status go_to_root() {
    if (folder_ >= 0) ::close(folder_);
    at_.clear();
    folder_ = ::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return folder_ < 0 ? cannot_open("/") : check_folder(folder_, "/", true);
  }

  static absl::Status check_folder(int fd, const std::string& path, bool sticky) {
    const std::string reason = distrust(fd, sticky);
    if (reason.empty()) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("its folder is not safe: ", path, ": ", reason));
  }

  // Goes on at the target of a symbolic link. Others can create a link in a sticky folder, and the link decides where
  // the walk goes, so this user or root must own the link.
  absl::Status follow(int link, uid_t owner, const std::string& path) {
    char target[PATH_MAX];
    const ssize_t n = ::readlinkat(link, "", target, sizeof target);
    if (n < 0) return cannot_open(path);
    if (owner != ::geteuid() && owner != 0)
      return absl::PermissionDeniedError(absl::StrCat(path, ": the symbolic link belongs to user ", owner));
    if (++links_ > kMaxLinks) return absl::PermissionDeniedError(path + ": too many symbolic links");
    rest_.insert(0, target, static_cast<size_t>(n));
    return rest_.starts_with('/') ? go_to_root() : absl::OkStatus();
  }

  int folder_ = -1;
  std::string at_, rest_;  // the path of folder_, and the rest of the path
  int links_ = 0;
};

}  // namespace

absl::StatusOr<TrustedFile> TrustedFile::open(const std::string& path) {
  const absl::StatusOr<int> fd = Walk().run(path);
  if (!fd.ok()) return fd.status();
  return TrustedFile(*fd);
}

TrustedFile::~TrustedFile() {
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<std::string> TrustedFile::read() const { return read_all(fd_); }
// Names the process by its id, not by "self": a debugger also opens this path, and "self" would be the debugger.
std::string TrustedFile::loadable_path() const { return absl::StrCat("/proc/", ::getpid(), "/fd/", fd_); }

std::string distrust(int fd) { return distrust(fd, false); }

std::string distrust_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno_text();
  const absl::Cleanup close = [fd] { ::close(fd); };
  return distrust(fd);
}

absl::StatusOr<std::string> read_trusted_file(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT ? absl::NotFoundError("no such file") : absl::PermissionDeniedError(errno_text());
  const absl::Cleanup close = [fd] { ::close(fd); };
  struct stat info;
  if (::fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) return absl::InvalidArgumentError("no regular file");
  if (std::string reason = distrust(fd); !reason.empty()) return absl::PermissionDeniedError(reason);
  return read_all(fd);
}

}  // namespace rondo::io
