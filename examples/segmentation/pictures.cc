#include "rondo/examples/segmentation/pictures.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/image/image.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::examples {
namespace fs = std::filesystem;
namespace {

// The training class of each of Cityscapes' labels 0 to 33 (cityscapesScripts, helpers/labels.py). 255: ignored.
constexpr std::array<int32_t, 34> kCityscapesClasses = {255, 255, 255, 255, 255, 255, 255, 0,  1,  255, 255, 2,
                                                        3,   4,   255, 255, 255, 5,   255, 6,  7,  8,   9,   10,
                                                        11,  12,  13,  14,  15,  255, 255, 16, 17, 18};
constexpr int64_t kCityscapesCount = 19;

bool is_image(const fs::path& path) {
  const std::string end = absl::AsciiStrToLower(path.extension().string());  // cameras write IMG_1.JPG
  return end == ".png" || end == ".jpg" || end == ".jpeg";
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const std::string& name : io::list_folder(folder.string())) paths.push_back(folder / name);
  return paths;
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::string size_text(int64_t height, int64_t width) { return absl::StrCat(width, " x ", height); }

}  // namespace

std::unique_ptr<FolderPictures> FolderPictures::open(const std::string& folder, const std::string& split,
                                                     const FolderOptions& options) {
  const fs::path root(folder);
  std::vector<Files> files;
  const bool cityscapes = is_folder(root / "leftImg8bit");
  if (cityscapes) {
    if (options.classes != kCityscapesCount)
      throw Error(absl::StrCat(folder, " has Cityscapes' folders: its masks have ", kCityscapesCount, " classes, not ",
                               options.classes));
    for (const fs::path& city : entries_of(root / "leftImg8bit" / split))
      for (const fs::path& image : entries_of(city)) {
        std::string name = image.filename().string();
        constexpr std::string_view kEnd = "_leftImg8bit.png";
        if (!name.ends_with(kEnd)) continue;
        name.resize(name.size() - kEnd.size());
        files.push_back({name, image.string(),
                         (root / "gtFine" / split / city.filename() / (name + "_gtFine_labelIds.png")).string()});
      }
  } else {
    for (const fs::path& image : entries_of(root / split / "images"))
      if (is_image(image))
        files.push_back({image.stem().string(), image.string(),
                         (root / split / "masks" / (image.stem().string() + ".png")).string()});
  }
  if (files.empty()) throw FileError((root / split).string(), "there are no images");
  return std::unique_ptr<FolderPictures>(new FolderPictures(std::move(files), options, cityscapes));
}

std::unique_ptr<FolderPictures> FolderPictures::images_in(const std::string& folder, const FolderOptions& options) {
  std::vector<Files> files;
  for (const fs::path& image : entries_of(folder))
    if (is_image(image)) files.push_back({image.stem().string(), image.string(), ""});
  if (files.empty()) throw FileError(folder, "there are no images");
  std::map<std::string, const Files*> first;  // the first file of each name
  for (const Files& file : files)
    if (const auto [other, is_new] = first.emplace(file.name, &file); !is_new)
      throw FileError(file.image, absl::StrCat("has the name of ", other->second->image,
                                               ", and what is predicted for them is kept by name: rename one of them"));
  return std::unique_ptr<FolderPictures>(new FolderPictures(std::move(files), options, false));
}

FolderPictures::FolderPictures(std::vector<Files> files, const FolderOptions& options, bool cityscapes)
    : files_(std::move(files)), options_(options), cityscapes_(cityscapes) {
  std::vector<std::optional<std::string>> problems(files_.size());
  parallel_for(size(), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) try {
        if (options_.skip_bad_files) read(files_[static_cast<size_t>(i)]);
        else check_header(files_[static_cast<size_t>(i)]);
      } catch (const FileError& error) {
        problems[static_cast<size_t>(i)] = error.what();
      }
  });
  std::vector<Files> good;
  for (size_t i = 0; i < files_.size(); ++i) {
    if (!problems[i]) good.push_back(files_[i]);
    else if (!options_.skip_bad_files)
      throw Error(absl::StrCat(*problems[i], "; --skip_bad_files leaves such files out"));
    else skipped_.push_back(*problems[i]);
  }
  if (good.empty()) throw FileError(files_.front().image, "this file and all others of its folder were skipped");
  files_ = std::move(good);
}

void FolderPictures::check_header(const Files& files) const {
  const io::ImageInfo image = io::image_info(files.image);
  if (image.bits > 8 && !image.palette)
    throw FileError(files.image, absl::StrCat("has channels of ", image.bits, " bits; 8 are needed"));
  if (image.height * image.width > options_.max_pixels)
    throw FileError(files.image, absl::StrCat("has ", size_text(image.height, image.width), " pixels; at most ",
                                              options_.max_pixels, " are allowed (--max_pixels)"));
  if (files.mask.empty()) return;
  const io::ImageInfo mask = io::image_info(files.mask);
  if (mask.height != image.height || mask.width != image.width)
    throw FileError(files.mask, absl::StrCat("is ", size_text(mask.height, mask.width), ", but its image ", files.image,
                                             " is ", size_text(image.height, image.width)));
}

Picture FolderPictures::get(int64_t index) const { return read(files_.at(static_cast<size_t>(index))); }

Picture FolderPictures::read(const Files& files) const {
  check_header(files);
  // --max_pixels is the limit that users set, so no picture within that limit may exceed max_bytes. Reading takes less
  // than 8 bytes for each pixel.
  const int64_t bytes = std::max(io::ReadImageOptions().max_bytes, 8 * std::min(options_.max_pixels, int64_t{1} << 40));
  Picture picture{
      files.name,
      io::read_image(files.image, {.mode = io::ImageMode::kRgb, .max_pixels = options_.max_pixels, .max_bytes = bytes}),
      Tensor()};
  if (files.mask.empty()) return picture;
  picture.mask = io::read_mask(files.mask, options_.max_pixels, bytes);
  int32_t* classes = picture.mask.mutable_data<int32_t>();
  for (int64_t i = 0; i < picture.mask.numel(); ++i) {
    if (cityscapes_ && classes[i] >= 0 && classes[i] < std::ssize(kCityscapesClasses))
      classes[i] = kCityscapesClasses[static_cast<size_t>(classes[i])];
    if (classes[i] >= options_.classes && classes[i] != nn::kIgnoredClass)
      throw FileError(files.mask, absl::StrCat("has the class ", classes[i], "; there are ", options_.classes,
                                               " classes, and ", nn::kIgnoredClass, " for what does not count"));
  }
  return picture;
}

}  // namespace rondo::examples
