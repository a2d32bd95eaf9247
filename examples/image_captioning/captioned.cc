#include "rondo/examples/image_captioning/captioned.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/data/example_set.h"
#include "rondo/runtime/data/line_reader.h"
#include "rondo/runtime/image/image.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::examples {
namespace fs = std::filesystem;
namespace {

std::string trimmed(std::string_view text) {
  return std::string(absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size())));
}

}  // namespace

Tensor read_picture(const std::string& path, int64_t max_pixels) {
  return io::read_image(path, {.round_16_bits = true, .max_pixels = max_pixels});
}

std::shared_ptr<const CaptionFile> CaptionFile::read(const std::string& folder, const std::string& path,
                                                     int64_t max_pixels) {
  const std::shared_ptr<CaptionFile> out(new CaptionFile(folder, path, max_pixels));
  data::LineReader lines(path);
  for (std::string_view line; lines.next(line);) {
    const auto fail = [&](std::string_view why) { throw data::DataError(path, lines.number(), why); };
    line = data::without_return(line);
    if (data::is_blank(line)) continue;
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos) fail("has no tab: lines are picture<TAB>caption");
    Row row{.name = trimmed(line.substr(0, tab)), .caption = trimmed(line.substr(tab + 1)), .line = lines.number()};
    if (row.name.empty()) fail("names no picture before the tab");
    if (row.caption.empty()) fail(absl::StrCat("has no caption for ", row.name));
    if (row.caption.find('\t') != std::string::npos) fail("has two tabs: captions have none");
    try {
      const io::ImageInfo info = io::image_info((fs::path(folder) / row.name).string());
      if (info.width > max_pixels / info.height)
        fail(absl::StrCat(row.name, " has ", info.width, " x ", info.height, " pixels; at most ", max_pixels,
                          " are allowed (--max_pixels)"));
    } catch (const data::DataError&) {
      throw;
    } catch (const FileError& error) {
      fail(error.what());
    }
    out->rows_.push_back(std::move(row));
  }
  if (out->rows_.empty()) throw FileError(path, "has no line picture<TAB>caption");
  return out;
}

std::pair<std::shared_ptr<const CaptionFile>, std::shared_ptr<const CaptionFile>> CaptionFile::split(
    double share) const {
  const std::shared_ptr<CaptionFile> first(new CaptionFile(folder_, path_, max_pixels_)),
      second(new CaptionFile(folder_, path_, max_pixels_));
  for (const Row& row : rows_) {
    io::Checksum sum;
    sum.update(row.name.data(), row.name.size());
    const bool held_out = static_cast<double>(sum.digest() >> 11) * 0x1p-53 < share;
    (held_out ? second : first)->rows_.push_back(row);
  }
  return {first, second};
}

Tensor CaptionFile::picture(int64_t index) const {
  return read_picture((fs::path(folder_) / rows_.at(static_cast<size_t>(index)).name).string(), max_pixels_);
}

void write_pictures(const CaptionedPictures& pictures, int64_t count, const std::string& folder) {
  const std::string captions = (fs::path(folder) / "captions.tsv").string();
  if (fs::exists(captions)) throw FileError(captions, "is there already: name another folder for the pictures");
  io::make_folders(folder);
  std::string lines;
  for (int64_t i = 0; i < std::min(count, pictures.size()); ++i) {
    const std::string name = formatted("picture%05d.png", i);
    io::write_image((fs::path(folder) / name).string(), pictures.picture(i));
    absl::StrAppend(&lines, name, "\t", pictures.caption(i), "\n");
  }
  io::write_file_atomic(captions, lines);
}

}  // namespace rondo::examples
