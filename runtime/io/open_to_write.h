// Opens files that are written in place: logs that grow, locks. (Files that are written whole: atomic_file.h.)
#pragma once

#include <string>

namespace rondo::io {

enum class Links {
  kFollow,
  kRefuse,  // also hard links; for names that others may guess, in folders that they may write to
};

// `flags` of open(2), with O_WRONLY or O_RDWR; the file is created with `mode` if it is not there, and not truncated.
// The caller closes the descriptor. Throws FileError, also if `path` is no regular file: a FIFO's or a device's other
// end is never waited for.
int open_to_write(const std::string& path, int flags, Links links, int mode = 0666);

}  // namespace rondo::io
