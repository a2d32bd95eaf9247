// examples/segmentation: the parts, the program on a small set, a kill and a resume, folders with bad files.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rondo/examples/segmentation/augment.h"
#include "rondo/examples/segmentation/confusion_matrix.h"
#include "rondo/examples/segmentation/pictures.h"
#include "rondo/examples/segmentation/synthetic.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/data/data_loader.h"
#include "rondo/runtime/image/image.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/paths.h"

namespace rondo::examples {
namespace {

namespace fs = std::filesystem;
using rondo::test::error_of;
using rondo::test::same_bits;

TEST(ConfusionMatrix, MeanIntersectionOverUnion) {
  ConfusionMatrix matrix(4);
  const Tensor targets = Tensor::from(std::vector<int32_t>{0, 0, 0, 1, 1, 255}, {2, 3});
  const Tensor predicted = Tensor::from(std::vector<int64_t>{0, 0, 1, 1, 2, 3}, {2, 3});
  matrix.add(predicted, targets);
  EXPECT_EQ(matrix.count(0, 1), 1);
  EXPECT_DOUBLE_EQ(*matrix.iou(0), 2.0 / 3);
  EXPECT_DOUBLE_EQ(*matrix.iou(1), 1.0 / 3);
  EXPECT_DOUBLE_EQ(*matrix.iou(2), 0.0);  // predicted only
  EXPECT_FALSE(matrix.iou(3));            // at an ignored pixel only
  EXPECT_DOUBLE_EQ(matrix.mean_iou(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(matrix.accuracy(), 0.6);
  ConfusionMatrix other(4);
  other.set_counts(matrix.counts());
  EXPECT_EQ(other.mean_iou(), matrix.mean_iou());
  EXPECT_NE(error_of([&] {
              matrix.add(predicted, Tensor::full({2, 3}, 4, kI32));
            }).find("there are 4 classes, got class 4"),
            std::string::npos);
  EXPECT_EQ(ConfusionMatrix(3).mean_iou(), 0);
}

// An item depends on (seed, epoch, index) only; image and mask go the same way.
TEST(PictureSets, AugmentationIsAFunctionOfSeedEpochAndIndex) {
  const auto pictures = std::make_shared<SyntheticPictures>(6, 3, 64);
  const auto set = std::make_shared<PictureSet>(
      pictures, AugmentOptions{.crop_height = 32, .crop_width = 64, .min_scale = 0.5, .max_scale = 2});
  std::vector<std::vector<data::Batch>> all;
  for (const int workers : {0, 1, 3}) {
    data::DataLoader loader(set, {.batch_size = 2, .shuffle = true, .seed = 5, .num_workers = workers});
    all.emplace_back();
    for (int epoch = 0; epoch < 2; ++epoch)
      while (auto batch = loader.next()) all.back().push_back(*batch);
  }
  ASSERT_EQ(all[0].size(), 6u);
  for (size_t run = 1; run < all.size(); ++run)
    for (size_t b = 0; b < 6; ++b)
      for (size_t part = 0; part < 2; ++part) EXPECT_TRUE(same_bits(all[0][b][part], all[run][b][part]));
  Generator one(1), two(2), again(1);
  const std::vector<Tensor> a = set->get(0, one), b = set->get(0, two), c = set->get(0, again);
  EXPECT_FALSE(same_bits(a[0], b[0]));
  EXPECT_TRUE(same_bits(a[0], c[0]));
}

// A mirror image, without any other change: pixel for pixel, also of the mask.
TEST(PictureSets, FlipsImageAndMask) {
  const auto pictures = std::make_shared<SyntheticPictures>(1, 3, 64);
  const Picture picture = pictures->get(0);
  const AugmentOptions flip{
      .crop_height = 64, .crop_width = 64, .min_scale = 1, .max_scale = 1, .flip = 1, .colour = 0};
  Generator random(1);
  const std::vector<Tensor> item = PictureSet(pictures, flip).get(0, random);
  const std::vector<int32_t> from = picture.mask.to_vector<int32_t>(), to = item[1].to_vector<int32_t>();
  const std::vector<float> image = item[0].to_vector<float>(), plain = normalised(picture.image, 1).to_vector<float>();
  for (size_t y = 0; y < 64; ++y)
    for (size_t x = 0; x < 64; ++x) {
      ASSERT_EQ(to[y * 64 + x], from[y * 64 + 63 - x]);
      for (size_t ch = 0; ch < 3; ++ch)
        ASSERT_NEAR(image[(ch * 64 + y) * 64 + x], plain[(ch * 64 + y) * 64 + 63 - x], 1e-4);
    }
}

// A crop that is larger than the picture: what lies outside does not count and is the mean colour.
TEST(PictureSets, OutsideDoesNotCount) {
  const auto pictures = std::make_shared<SyntheticPictures>(1, 3, 32);
  const AugmentOptions small{
      .crop_height = 64, .crop_width = 64, .min_scale = 1, .max_scale = 1, .flip = 0, .colour = 0.5};
  Generator random(4);
  const std::vector<Tensor> item = PictureSet(pictures, small).get(0, random);
  const std::vector<int32_t> mask = item[1].to_vector<int32_t>();
  const std::vector<float> image = item[0].to_vector<float>();
  int64_t inside = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    inside += mask[i] != nn::kIgnoredClass;
    if (mask[i] == nn::kIgnoredClass) {
      EXPECT_EQ(image[i], 0);
    }
  }
  EXPECT_EQ(inside, 32 * 32);
  // Without augmentation: below and at the right, up to a multiple.
  const std::vector<Tensor> padded = PictureSet(pictures, 48).get(0);
  EXPECT_EQ(to_string(padded[0].sizes()), "[3, 48, 48]");
  EXPECT_EQ(padded[1].select(0, 40).to_vector<int32_t>(), std::vector<int32_t>(48, 255));
}

struct Finished {
  int status;
  std::string out;
};

class Segmentation : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return (fs::path(folder_.path()) / name).string(); }
  // <folder>/<split>/images and masks, of made pictures.
  void make_folder(const std::string& split, int64_t n) {
    const SyntheticPictures made(n, 9, 64);
    for (const char* kind : {"images", "masks"}) fs::create_directories(at("set/" + split + "/" + kind));
    for (int64_t i = 0; i < n; ++i) {
      const Picture picture = made.get(i);
      io::write_image(at(absl::StrCat("set/", split, "/images/p", i, i % 2 == 0 ? ".png" : ".jpg")), picture.image);
      io::write_mask(at(absl::StrCat("set/", split, "/masks/p", i, ".png")), picture.mask);
    }
  }
  std::string open_error(const FolderOptions& options = {.classes = 5, .max_pixels = 1 << 20}) {
    return error_of([&] {
      const auto set = FolderPictures::open(at("set"), "train", options);
      for (int64_t i = 0; i < set->size(); ++i) set->get(i);
    });
  }
  Finished run(const std::string& options, const std::string& behind = "") {
    const std::string log = at("log");
    const int status = std::system(
        absl::StrCat("RONDO_NUM_THREADS=1 ", tests::kSegmentation, " ", options, " >", log, " 2>&1 ", behind).c_str());
    std::stringstream out;
    out << std::ifstream(log).rdbuf();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out.str()};
  }
  static std::string small() {
    return " --synthetic_pictures=12 --synthetic_validation=4 --crop_height=64 --crop_width=64 --batch_size=2 "
           "--max_steps=18 --eval_steps=9 --save_steps=3 --logging_steps=1 ";
  }
  test::TempFolder folder_;
};

std::string bytes_of_file(const std::string& path) {
  std::stringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

TEST_F(Segmentation, FoldersOfImagesAndMasks) {
  make_folder("train", 3);
  fs::rename(at("set/train/images/p1.jpg"), at("set/train/images/p1.JPG"));  // as cameras write it
  const auto set = FolderPictures::open(at("set"), "train", {.classes = 5, .max_pixels = 1 << 20});
  ASSERT_EQ(set->size(), 3);
  const Picture first = set->get(0), made = SyntheticPictures(3, 9, 64).get(0);
  EXPECT_EQ(first.name, "p0");
  EXPECT_TRUE(same_bits(first.image.contiguous(), made.image));
  EXPECT_TRUE(same_bits(first.mask, made.mask));
  EXPECT_EQ(to_string(set->get(1).image.sizes()), "[3, 64, 64]");  // a JPEG
}

TEST_F(Segmentation, CityscapesFolders) {
  fs::create_directories(at("city/leftImg8bit/train/ulm"));
  fs::create_directories(at("city/gtFine/train/ulm"));
  io::write_image(at("city/leftImg8bit/train/ulm/ulm_0_0_leftImg8bit.png"), Tensor::zeros({3, 1, 4}, kU8));
  io::write_mask(at("city/gtFine/train/ulm/ulm_0_0_gtFine_labelIds.png"),
                 Tensor::from(std::vector<int32_t>{7, 0, 33, 26}, {1, 4}));
  const auto set = FolderPictures::open(at("city"), "train", {.classes = 19, .max_pixels = 100});
  EXPECT_EQ(set->get(0).mask.to_vector<int32_t>(), (std::vector<int32_t>{0, 255, 18, 13}));  // road, -, bicycle, car
  EXPECT_NE(error_of([&] { FolderPictures::open(at("city"), "train", {.classes = 5}); }).find("19 classes, not 5"),
            std::string::npos);
}

// Damaged and cut files, 16 bits, a huge image, a mask of another size, an unknown class, a mask that is not there: an
// error with the file's name, or left out and counted.
TEST_F(Segmentation, BadFilesAreNamedOrSkipped) {
  make_folder("train", 7);
  const auto image = [&](int i, const char* end) { return at(absl::StrCat("set/train/images/p", i, end)); };
  const auto mask = [&](int i) { return at(absl::StrCat("set/train/masks/p", i, ".png")); };
  std::string cut = bytes_of_file(image(0, ".png"));
  const std::string whole = cut, photo = bytes_of_file(image(1, ".jpg")), classes = bytes_of_file(mask(2));
  const auto write = [](const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  };
  const auto expect_named = [&](const std::string& path, const std::string& what) {
    const std::string error = open_error();
    EXPECT_NE(error.find(path), std::string::npos) << error;
    EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  write(image(0, ".png"), whole.substr(0, whole.size() / 2));
  expect_named(image(0, ".png"), "");
  std::string damaged = whole;
  damaged[whole.size() / 2] = static_cast<char>(damaged[whole.size() / 2] ^ 1);
  write(image(0, ".png"), damaged);
  expect_named(image(0, ".png"), "");
  write(image(0, ".png"), "GIF89a");
  expect_named(image(0, ".png"), "");
  fs::copy_file(absl::StrCat(tests::kReferenceDir, "/images/rgb16.png"), image(0, ".png"),
                fs::copy_options::overwrite_existing);
  expect_named(image(0, ".png"), "16 bits");
  io::write_image(image(0, ".png"), Tensor::zeros({3, 1025, 1024}, kU8));
  expect_named(image(0, ".png"), "1024 x 1025 pixels; at most 1048576 are allowed (--max_pixels)");
  write(image(0, ".png"), whole);
  write(image(1, ".jpg"), photo.substr(0, photo.size() - 40));
  expect_named(image(1, ".jpg"), "");
  write(image(1, ".jpg"), photo);
  io::write_mask(mask(2), Tensor::zeros({64, 60}, kI32));
  expect_named(mask(2), absl::StrCat("is 60 x 64, but its image ", image(2, ".png"), " is 64 x 64"));
  io::write_mask(mask(2), Tensor::full({64, 64}, 5, kI32));
  expect_named(mask(2), "has the class 5; there are 5 classes");
  fs::remove(mask(3));
  write(mask(2), classes);
  expect_named(mask(3), "");

  // Three at once.
  write(image(0, ".png"), damaged);
  io::write_mask(mask(2), Tensor::zeros({64, 60}, kI32));
  const FolderOptions skip{.classes = 5, .max_pixels = 1 << 20, .skip_bad_files = true};
  const auto set = FolderPictures::open(at("set"), "train", skip);
  EXPECT_EQ(set->size(), 4);
  ASSERT_EQ(set->skipped().size(), 3u);
  EXPECT_NE(set->skipped()[0].find(image(0, ".png")), std::string::npos);
  EXPECT_NE(set->skipped()[1].find(mask(2)), std::string::npos);
  EXPECT_NE(set->skipped()[2].find(mask(3)), std::string::npos);

  // The program: the error, and with the option it trains and says what it left out.
  make_folder("val", 2);
  const std::string options = absl::StrCat(
      "--data=", at("set"),
      " --classes=5 --model=small --eval_batch_size=2 "
      "--crop_height=64 --crop_width=64 --batch_size=2 --max_steps=2 --output_dir=",
      at("out"));
  const Finished failed = run(options);
  EXPECT_EQ(failed.status, 1);
  EXPECT_NE(failed.out.find("--skip_bad_files leaves such files out"), std::string::npos) << failed.out;
  const Finished done = run(options + " --skip_bad_files");
  EXPECT_EQ(done.status, 0) << done.out;
  EXPECT_NE(done.out.find("3 files were skipped, 4 are used"), std::string::npos) << done.out;
}

// Killed with SIGKILL and resumed: losses, mIoU and the saved averages are those of an undisturbed run.
TEST_F(Segmentation, AKilledRunGoesOnExactly) {
  const Finished whole = run(small() + "--output_dir=" + at("a"));
  ASSERT_EQ(whole.status, 0) << whole.out;
  bool killed = false;
  Finished done{-1, ""};
  for (int i = 0; i < 20 && done.status != 0; ++i) {
    const std::string lines = absl::StrCat(at("b"), "/metrics.jsonl");
    const int goal = 4 + 5 * i;
    const std::string watch = absl::StrCat("& p=$!; while kill -0 $p 2>/dev/null && [ $(cat ", lines,
                                           " 2>/dev/null | wc -l) -lt ", goal,
                                           " ]; do sleep 0.01; done; kill -9 $p 2>/dev/null; wait $p");
    done = run(small() + "--resume_from_checkpoint=true --output_dir=" + at("b"), i < 2 ? watch : "");
    killed = killed || done.status == 137;
  }
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_TRUE(killed);
  const auto losses = [&](const std::string& run) {
    std::vector<std::string> lines;
    std::ifstream file(at(run + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(line.substr(0, line.find(",\"targets_per_s\"")));
    return lines;
  };
  EXPECT_EQ(losses("a").size(), 18u);
  EXPECT_EQ(losses("a"), losses("b"));
  EXPECT_EQ(bytes_of_file(at("a/miou.jsonl")), bytes_of_file(at("b/miou.jsonl")));
  EXPECT_EQ(bytes_of_file(at("a/model.safetensors")), bytes_of_file(at("b/model.safetensors")));
  const io::ImageInfo sheet = io::image_info(at("a/pictures/step-000018.png"));
  EXPECT_EQ(sheet.width, 3 * 132 + 4);
  EXPECT_EQ(sheet.height, 4 * 132 + 4);
  EXPECT_TRUE(absl::StrContains(bytes_of_file(fs::directory_iterator(at("a/tensorboard/evaluation"))->path()),
                                "eval/pictures"));

  // Predictions of the saved model.
  fs::create_directories(at("photos"));
  io::write_image(at("photos/one.png"), SyntheticPictures(1, 2).get(0).image.slice(1, {0, 100}));
  const Finished predicted = run(
      absl::StrCat("--init_from=", at("a/model.safetensors"), " --predict=", at("photos"), " --output_dir=", at("a")));
  EXPECT_EQ(predicted.status, 0) << predicted.out;
  EXPECT_EQ(to_string(io::read_mask(at("a/predictions/one_classes.png")).sizes()), "[100, 128]");
  EXPECT_EQ(io::image_info(at("a/predictions/one_shown.png")).height, 100);
  const Finished onto_itself = run(absl::StrCat("--init_from=", at("a/model.safetensors"),
                                                " --predict=", at("a/predictions"), " --output_dir=", at("a/../a")));
  EXPECT_EQ(onto_itself.status, 1);
  EXPECT_NE(onto_itself.out.find("is the folder that predictions are written to"), std::string::npos)
      << onto_itself.out;
  EXPECT_FALSE(fs::exists(at("a/predictions/one_classes_classes.png")));

  // One name twice: nothing is written, so nothing is written over.
  io::write_image(at("photos/one.jpg"), SyntheticPictures(1, 3).get(0).image);
  const Finished twice = run(
      absl::StrCat("--init_from=", at("a/model.safetensors"), " --predict=", at("photos"), " --output_dir=", at("b")));
  EXPECT_NE(twice.status, 0);
  EXPECT_NE(twice.out.find("one.png: has the name of " + at("photos/one.jpg")), std::string::npos) << twice.out;
  EXPECT_FALSE(fs::exists(at("b/predictions")));
}

// Two processes share the batches: both kinds of sums are there, and rank 0 writes.
TEST_F(Segmentation, TwoProcesses) {
  const int status = std::system(absl::StrCat("RONDO_NUM_THREADS=1 ", tests::kRondorun, " --nproc-per-node 2 ",
                                              tests::kSegmentation, small(), "--check_ranks --output_dir=", at("two"),
                                              " >", at("log"), " 2>&1")
                                     .c_str());
  const std::string log = bytes_of_file(at("log"));
  ASSERT_EQ(status, 0) << log;
  EXPECT_NE(log.find("2 processes share the batches"), std::string::npos) << log;
  EXPECT_TRUE(fs::exists(at("two/model.safetensors")));
}

TEST_F(Segmentation, WhatCannotWorkIsSaid) {
  EXPECT_NE(run("--classes=7").out.find("made pictures have 5, got 7"), std::string::npos);
  EXPECT_NE(run("--crop_height=100").out.find("multiples of 32, got 100 and 128"), std::string::npos);
  EXPECT_NE(run("--predict=" + at("nothing")).out.find("--predict needs --init_from"), std::string::npos);
  EXPECT_NE(run("--data=" + at("nothing")).out.find(at("nothing")), std::string::npos);
}

}  // namespace
}  // namespace rondo::examples
