// Pictures with a class for each pixel: read from a folder, or made by the program.
//
//   const auto set = FolderPictures::open("cityscapes", "train", {.classes = 19});
//   const Picture picture = set->get(7);    // throws FileError with the file's name
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rondo/modules/layers/segmentation_loss.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::examples {

struct Picture {
  std::string name;  // for messages and for files of predictions
  Tensor image;      // (3, H, W) u8
  Tensor mask;       // (H, W) i32: classes, or nn::kIgnoredClass for pixels that do not count; undefined without masks
};

// Thread safety: get() may be called by several threads.
class Pictures {
 public:
  virtual ~Pictures() = default;
  virtual int64_t size() const = 0;
  virtual Picture get(int64_t index) const = 0;
};

struct FolderOptions {
  int64_t classes = 0;
  int64_t max_pixels = int64_t{1} << 26;  // the most pixels that an image may have
  // True: leaves out files that cannot be used. All files are read once to find them. False: throws an error for such a
  // file. open() detects a wrong header (size, 16 bits), and get() detects damaged data.
  bool skip_bad_files = false;
};

// A folder of one of these forms; PNG or JPEG images, PNG masks:
//   <folder>/<split>/images/NAME.*, <folder>/<split>/masks/NAME.png       the mask's values are classes
//   <folder>/leftImg8bit/<split>/CITY/NAME_leftImg8bit.png,
//   <folder>/gtFine/<split>/CITY/NAME_gtFine_labelIds.png                 Cityscapes: its 19 classes for training
class FolderPictures : public Pictures {
 public:
  // Throws FileError if there are no pictures; Error if an image has no mask, or a mask has another size than its
  // image.
  static std::unique_ptr<FolderPictures> open(const std::string& folder, const std::string& split,
                                              const FolderOptions& options);
  // Opens the images of one folder, without masks. Throws FileError if two of them have the same name without the
  // extension, such as a.png and a.jpg.
  static std::unique_ptr<FolderPictures> images_in(const std::string& folder, const FolderOptions& options);

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  Picture get(int64_t index) const override;
  // Returns why files were left out: one message for each such file.
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  struct Files {
    std::string name, image, mask;  // mask: "" if the image has none
  };
  FolderPictures(std::vector<Files> files, const FolderOptions& options, bool cityscapes);
  Picture read(const Files& files) const;
  void check_header(const Files& files) const;

  std::vector<Files> files_;
  const FolderOptions options_;
  const bool cityscapes_;
  std::vector<std::string> skipped_;
};

}  // namespace rondo::examples
