// Pictures with captions, for training and for evaluation.
//
//   const auto all = CaptionFile::read("photos", "captions.tsv");       // or DrawnPictures
//   all->caption(0), all->picture(0);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rondo/runtime/tensor/tensor.h"

namespace rondo::examples {

// Thread safety: all calls may run at the same time.
class CaptionedPictures {
 public:
  virtual ~CaptionedPictures() = default;
  virtual int64_t size() const = 0;
  virtual std::string caption(int64_t index) const = 0;
  // Returns the picture, (C, H, W) u8. Throws FileError.
  virtual Tensor picture(int64_t index) const = 0;
  // Returns the line of the caption in file(), for error messages; 0 if the caption is from no file.
  virtual int64_t line(int64_t /*index*/) const { return 0; }
  virtual std::string file() const { return ""; }
};

// A file with lines "picture<TAB>caption"; pictures are PNG or JPEG files, named from `folder`. Blank lines are left
// out. A picture may have several captions.
class CaptionFile : public CaptionedPictures {
 public:
  // Reads all lines, and the header of each picture. Throws data::DataError, which names the line: no tab, an empty
  // name or caption, invalid UTF-8, a picture that is missing, of another format, or of more than `max_pixels`.
  // FileError: the file cannot be read, or has no line.
  static std::shared_ptr<const CaptionFile> read(const std::string& folder, const std::string& path,
                                                 int64_t max_pixels);
  // Returns two sets that share no picture. About `share` of the pictures are in the second one. A picture's name
  // decides its set.
  std::pair<std::shared_ptr<const CaptionFile>, std::shared_ptr<const CaptionFile>> split(double share) const;

  int64_t size() const override { return std::ssize(rows_); }
  std::string caption(int64_t index) const override { return rows_.at(static_cast<size_t>(index)).caption; }
  Tensor picture(int64_t index) const override;
  int64_t line(int64_t index) const override { return rows_.at(static_cast<size_t>(index)).line; }
  std::string file() const override { return path_; }

 private:
  struct Row {
    std::string name, caption;
    int64_t line = 0;
  };
  CaptionFile(std::string folder, std::string path, int64_t max_pixels)
      : folder_(std::move(folder)), path_(std::move(path)), max_pixels_(max_pixels) {}

  const std::string folder_, path_;
  const int64_t max_pixels_;
  std::vector<Row> rows_;
};

// Reads a picture of any kind that io::read_image() reads. Returns it in the form that an image processor expects: (C,
// H, W) u8.
Tensor read_picture(const std::string& path, int64_t max_pixels);

// Writes the first `count` pictures as PNG files, and captions.tsv, which CaptionFile reads. Throws FileError.
void write_pictures(const CaptionedPictures& pictures, int64_t count, const std::string& folder);

}  // namespace rondo::examples
