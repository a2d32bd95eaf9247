// Prepares pictures for a model: normalises them, and augments them for training.
//
//   const auto set = std::make_shared<PictureSet>(pictures, AugmentOptions{.crop_height = 512, .crop_width = 1024});
//   data::DataLoader loader(set, {.batch_size = 8, .shuffle = true, .seed = 1, .num_workers = 2});
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "rondo/examples/segmentation/pictures.h"
#include "rondo/runtime/data/dataset.h"

namespace rondo::examples {

struct AugmentOptions {
  int64_t crop_height = 0, crop_width = 0;
  double min_scale = 0.5, max_scale = 2.0;  // factors of the size, drawn evenly on a logarithmic scale
  double flip = 0.5;                        // the probability of a mirror image
  double colour = 0.4;  // brightness, contrast and saturation are scaled by factors from 1 - colour to 1 + colour
};

// Converts (3, H, W) u8 to f32: normalises with ImageNet's mean and standard deviation, and pads with zeros below and
// at the right to multiples of `multiple`.
Tensor normalised(const Tensor& image, int64_t multiple);

// Items are {image f32 (3, H, W), mask i32 (H, W)}.
class PictureSet : public data::Dataset {
 public:
  // Makes a set of augmented items of the crop's size. All random choices are drawn from the generator that get() is
  // given.
  PictureSet(std::shared_ptr<const Pictures> pictures, const AugmentOptions& options);
  // Makes a set of items without augmentation, padded to multiples of `multiple`. The padding of a mask has the ignored
  // class.
  PictureSet(std::shared_ptr<const Pictures> pictures, int64_t multiple);

  int64_t size() const override { return pictures_->size(); }
  std::vector<Tensor> get(int64_t index) const override;
  std::vector<Tensor> get(int64_t index, Generator& random) const override;

 private:
  const std::shared_ptr<const Pictures> pictures_;
  const std::optional<AugmentOptions> augment_;
  const int64_t multiple_ = 1;
};

}  // namespace rondo::examples
