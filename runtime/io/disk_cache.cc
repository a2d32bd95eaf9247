#include "rondo/runtime/io/disk_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/checksum.h"
#include "rondo/runtime/io/kernel_file.h"
#include "rondo/runtime/io/trusted_file.h"

namespace rondo::io {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kExtension = ".rk";

// Returns the hash of a text, for a file name. Hashes need not be unique: the file holds the whole text, which find()
// compares.
std::string hash_name(const std::string& text) {
  Checksum sum;
  sum.update(text);
  return absl::StrCat(absl::Hex(sum.digest(), absl::kZeroPad16));
}

bool is_temporary(const fs::path& path) { return path.filename().string().starts_with(AtomicFile::kTempPrefix); }

// Returns the paths of all entries of `folder`. A folder that cannot be read counts as empty.
std::vector<fs::path> paths_in(const std::string& folder) {
  std::vector<fs::path> paths;
  try {
    for (const std::string& name : list_folder(folder)) paths.push_back(fs::path(folder) / name);
  } catch (const FileError&) {
  }
  return paths;
}

}  // namespace

DiskCache::DiskCache(DiskCacheOptions options, HostKey host)
    : root_(host.complete() ? std::move(options.folder) : ""),
      max_bytes_(options.max_bytes),
      warn_(options.warn),
      host_(std::move(host)),
      host_text_(host_.text()),
      folder_(absl::StrCat(root_, "/", hash_name(host_text_))) {}

DiskCacheOptions DiskCacheOptions::from_environment() {
  const auto variable = [](const char* value) { return std::string(value == nullptr ? "" : value); };
  const std::string mode = variable(std::getenv("RONDO_CACHE"));
  DiskCacheOptions options;
  const std::vector<std::string> disabled = absl::StrSplit(variable(std::getenv("RONDO_DISABLE")), ',');
  if (!mode.empty() && mode != "on" && mode != "off" && mode != "0" && mode != "1")
    throw Error(absl::StrCat("RONDO_CACHE=", mode, " is neither on nor off; RONDO_CACHE_DIR says where the cache is"));
  if (mode == "off" || mode == "0" || std::find(disabled.begin(), disabled.end(), "cache") != disabled.end())
    return options;
  std::string& folder = options.folder;
  folder = variable(std::getenv("RONDO_CACHE_DIR"));
  // A relative path is ignored, as the XDG base directory specification requires.
  if (const std::string xdg = variable(std::getenv("XDG_CACHE_HOME")); folder.empty() && xdg.starts_with("/"))
    folder = xdg + "/rondo";
  if (const std::string home = variable(std::getenv("HOME")); folder.empty() && home.starts_with("/"))
    folder = home + "/.cache/rondo";
  if (const std::string limit = variable(std::getenv("RONDO_CACHE_MB")); !limit.empty()) {
    int64_t megabytes = 0;
    if (!absl::SimpleAtoi(limit, &megabytes) || megabytes < 0)
      throw Error(absl::StrCat("RONDO_CACHE_MB=", limit, " is not a number of MiB"));
    options.max_bytes = std::min<int64_t>(megabytes, 1 << 20) << 20;
  }
  return options;
}

std::string DiskCache::path_of(const std::string& kernel) const {
  return absl::StrCat(folder_, "/", hash_name(kernel), kExtension);
}

// Warns once, however many problems the cache has.
void DiskCache::warn(const std::string& what) {
  if (warned_.exchange(true) || warn_ == nullptr) return;
  warn_(absl::StrCat("kernel cache ", root_, ": ", what,
                     "; kernels are compiled as if it were not there (RONDO_CACHE=off silences this)"));
}

// True if entries may be looked up. A missing folder is checked again in each call: another process may create it.
bool DiskCache::usable() {
  std::lock_guard lock(mutex_);
  if (root_.empty() || state_ == State::kRefused) return false;
  if (state_ == State::kUsable) return true;
  for (const std::string& path : {root_, folder_}) {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0 && errno == ENOENT) return false;
    if (const std::string reason = distrust_folder(path); !reason.empty()) {
      warn(absl::StrCat(path, ": ", reason));
      state_ = State::kRefused;
      return false;
    }
  }
  state_ = State::kUsable;
  return true;
}

std::optional<std::string> DiskCache::find(const std::string& kernel) {
  if (!usable()) return std::nullopt;
  const std::string path = path_of(kernel);
  absl::StatusOr<std::string> bytes = read_trusted_file(path);
  if (!bytes.ok()) {
    if (!absl::IsNotFound(bytes.status())) warn(absl::StrCat(path, ": ", std::string(bytes.status().message())));
    return std::nullopt;
  }
  absl::StatusOr<KernelFile> file = unpack(*bytes);
  if (!file.ok() || file->kernels.size() != 1) {
    warn(absl::StrCat(path, ": ", file.ok() ? "no cache entry" : std::string(file.status().message())));
    return std::nullopt;
  }
  // The file may hold another kernel with the same hash. Then the kernel that is searched counts as missing, and
  // store() will replace the file.
  if (file->host != host_text_ || file->kernels[0].kernel != kernel) return std::nullopt;
  // prune() removes the entries that were not used for longest. One update of the time a day is precise enough.
  std::error_code ignored;
  const auto now = fs::file_time_type::clock::now();
  if (const auto written = fs::last_write_time(path, ignored); !ignored && now - written > 24h)
    fs::last_write_time(path, now, ignored);
  return std::move(file->kernels[0].object);
}

// Creates a folder that only this user can access, whatever the umask: usable() refuses folders that a group can write.
void DiskCache::make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw FileError(path, absl::StrCat("cannot create: ", std::generic_category().message(errno)));
}

void DiskCache::store(const std::string& kernel, const std::string& object) {
  {
    std::lock_guard lock(mutex_);
    if (root_.empty() || state_ == State::kRefused || !writable_ || max_bytes_ == 0) return;
  }
  try {
    try {
      write(kernel, object);
    } catch (const FileError&) {
      // Another process may have removed the folder while it was empty. If so, creates it again.
      if (std::error_code ignored; fs::exists(folder_, ignored)) throw;
      write(kernel, object);
    }
  } catch (const FileError& error) {
    warn(error.what());
    std::lock_guard lock(mutex_);
    writable_ = false;  // full or read-only: this process does not try again
  }
}

void DiskCache::write(const std::string& kernel, const std::string& object) {
  const std::string parent = fs::path(root_).parent_path().string();
  if (!parent.empty()) make_folders(parent);
  make_folder(root_);
  make_folder(folder_);
  if (!usable()) return;
  const std::string bytes = pack({host_text_, {{kernel, object}}});
  // AtomicFile does not replace a pipe or a device. If one has the entry's name, remove it: the folder is our own.
  if (std::error_code ignored; fs::is_other(path_of(kernel), ignored)) fs::remove(path_of(kernel), ignored);
  AtomicFile file(path_of(kernel), Access::kOwner);
  file.write(bytes);
  file.publish();
  std::lock_guard lock(mutex_);
  if (prune_is_due(static_cast<int64_t>(bytes.size()))) prune();
}

void DiskCache::reject(const std::string& kernel, const std::string& why) {
  if (root_.empty()) return;
  warn(absl::StrCat(path_of(kernel), ": ", why));
  std::error_code ignored;
  fs::remove(path_of(kernel), ignored);
}

// Lists only folders that a cache created: the user may have chosen a root folder that also holds other things.
std::vector<std::string> DiskCache::host_folders() const {
  std::vector<std::string> folders;
  for (const fs::path& path : paths_in(root_)) {
    const std::string name = path.filename().string();
    const bool ours = name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (std::error_code ignored; ours && fs::is_directory(path, ignored)) folders.push_back(path.string());
  }
  return folders;
}

// True if prune() should run. Counting a large cache takes long, so one process a day counts it, and so does each
// process that has stored much.
bool DiskCache::prune_is_due(int64_t stored) {
  stored_ += stored;
  if (bytes_ >= 0) return (bytes_ += stored) > max_bytes_;
  if (stored_ > max_bytes_ / 8) return true;
  std::error_code error;
  const auto last = fs::last_write_time(root_ + "/pruned", error);
  return error || fs::file_time_type::clock::now() - last > 24h;
}

// Counts the bytes of all entries. If they exceed max_bytes_, removes the oldest entries until the rest takes at most
// three quarters of max_bytes_. Other processes may do this at the same time: a file that is gone already is no error,
// and a file that another process is reading stays readable.
void DiskCache::prune() {
  struct File {
    fs::file_time_type time;
    int64_t bytes;
    fs::path path;
  };
  AtomicFile(root_ + "/pruned", Access::kOwner).publish();
  std::vector<File> files;
  bytes_ = 0;
  const auto now = fs::file_time_type::clock::now();
  for (const std::string& folder : host_folders()) {
    for (const fs::path& path : paths_in(folder)) {
      std::error_code gone;
      if (!fs::is_regular_file(path, gone) || gone) continue;
      const File file{fs::last_write_time(path, gone), static_cast<int64_t>(fs::file_size(path, gone)), path};
      if (gone) continue;
      if (is_temporary(file.path)) {
        if (now - file.time > 1h) fs::remove(file.path, gone);  // left by a process that was killed
      } else if (file.path.extension() == kExtension) {
        bytes_ += file.bytes;
        files.push_back(file);
      }
    }
  }
  if (bytes_ <= max_bytes_) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.time < b.time; });
  for (const File& file : files) {
    if (bytes_ <= max_bytes_ / 4 * 3) break;
    std::error_code gone;
    fs::remove(file.path, gone);
    bytes_ -= file.bytes;
    if (file.path.parent_path() != fs::path(folder_)) ::rmdir(file.path.parent_path().c_str());  // fails if not empty
  }
}

HostDifference DiskCache::nearest_host(const std::string& kernel) const {
  HostDifference nearest;
  if (root_.empty()) return nearest;
  std::vector<std::string> folders = host_folders();
  if (folders.size() > 64) folders.resize(64);  // each one costs a file read
  for (const std::string& folder : folders) {
    if (folder == folder_) continue;
    const fs::path path = folder + "/" + hash_name(kernel) + kExtension;
    const absl::StatusOr<std::string> bytes = read_trusted_file(path.string());
    if (!bytes.ok()) continue;
    const absl::StatusOr<KernelFile> file = unpack(*bytes);
    if (!file.ok() || file->kernels.size() != 1 || file->kernels[0].kernel != kernel) continue;
    HostDifference found = compare(HostKey::parse(file->host), host_);
    if (nearest.components.empty() || found.components.size() < nearest.components.size()) nearest = std::move(found);
  }
  return nearest;
}

std::vector<std::string> DiskCache::some_kernels(size_t at_most) const {
  std::vector<std::string> kernels;
  if (root_.empty()) return kernels;
  for (const fs::path& path : paths_in(folder_)) {
    if (kernels.size() >= at_most) break;
    if (path.extension() != kExtension) continue;
    const absl::StatusOr<std::string> bytes = read_trusted_file(path.string());
    if (!bytes.ok()) continue;
    absl::StatusOr<KernelFile> file = unpack(*bytes);
    if (file.ok() && file->kernels.size() == 1) kernels.push_back(std::move(file->kernels[0].kernel));
  }
  return kernels;
}

}  // namespace rondo::io
