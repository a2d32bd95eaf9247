// examples/image_captioning: drawn pictures and their grammar, files of captions, batches, the tokenizer, the program.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rondo/examples/image_captioning/caption_batches.h"
#include "rondo/examples/image_captioning/caption_model.h"
#include "rondo/examples/image_captioning/drawn.h"
#include "rondo/examples/image_captioning/options.h"
#include "rondo/examples/image_captioning/word_tokenizer.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/image/image.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/paths.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::examples {
namespace {

namespace fs = std::filesystem;
using rondo::test::error_of;
using rondo::test::same_bits;

// ---- Reads a drawn picture's caption off its pixels.

struct Patch {
  int64_t colour = -1, pixels = 0, left = 1 << 30, right = -1, top = 1 << 30, bottom = -1;
};

int64_t nearest_colour(const uint8_t* pixels, size_t n, size_t at) {
  int64_t best = -1;
  double least = 80;  // beyond this it is the ground
  for (int64_t c = 0; c < DrawnPictures::kColours; ++c) {
    double sum = 0;
    for (size_t i = 0; i < 3; ++i) sum += std::pow(pixels[i * n + at] - DrawnPictures::rgb(c)[i], 2);
    if (std::sqrt(sum) < least) least = std::sqrt(sum), best = c;
  }
  return best;
}

// Connected pixels of one colour.
std::vector<Patch> patches_of(const Tensor& picture) {
  const int64_t H = picture.size(1), W = picture.size(2);
  const auto n = static_cast<size_t>(H * W);
  std::vector<int64_t> colours(n);
  for (size_t i = 0; i < n; ++i) colours[i] = nearest_colour(picture.data<uint8_t>(), n, i);
  std::vector<Patch> patches;
  for (size_t start = 0; start < n; ++start) {
    if (colours[start] < 0) continue;
    Patch patch{.colour = colours[start]};
    std::vector<size_t> open = {start};
    colours[start] = -1;
    while (!open.empty()) {
      const size_t at = open.back();
      open.pop_back();
      const auto y = static_cast<int64_t>(at) / W, x = static_cast<int64_t>(at) % W;
      ++patch.pixels;
      patch.left = std::min(patch.left, x), patch.right = std::max(patch.right, x);
      patch.top = std::min(patch.top, y), patch.bottom = std::max(patch.bottom, y);
      for (const auto& [dy, dx] : {std::pair(0, 1), {0, -1}, {1, 0}, {-1, 0}}) {
        if (y + dy < 0 || y + dy >= H || x + dx < 0 || x + dx >= W) continue;
        const auto next = static_cast<size_t>((y + dy) * W + x + dx);
        if (colours[next] != patch.colour) continue;
        colours[next] = -1;
        open.push_back(next);
      }
    }
    patches.push_back(patch);
  }
  return patches;
}

// By the share of its box that it fills: a square all, a circle pi / 4, a cross half (0.51), a triangle half. A cross
// is as wide as it is high, a triangle starts with one pixel: its top row is empty but for the middle.
int64_t shape_of(const Patch& patch, const Tensor& picture) {
  const double width = static_cast<double>(patch.right - patch.left + 1),
               height = static_cast<double>(patch.bottom - patch.top + 1);
  const double share = static_cast<double>(patch.pixels) / (width * height);
  if (share > 0.9) return 1;
  if (share > 0.7) return 0;
  // The bottom row: of a triangle all of it, of a cross the middle.
  const auto n = static_cast<size_t>(picture.size(1) * picture.size(2));
  int64_t filled = 0;
  for (int64_t x = patch.left; x <= patch.right; ++x)
    filled += nearest_colour(picture.data<uint8_t>(), n,
                             static_cast<size_t>((patch.bottom - 1) * picture.size(2) + x)) == patch.colour;
  return static_cast<double>(filled) > 0.7 * width ? 2 : 3;
}

std::string read_caption(const Tensor& picture) {
  struct Group {
    DrawnGroup group;
    Patch box;
  };
  std::vector<Group> groups;
  for (const Patch& patch : patches_of(picture)) {
    const DrawnGroup one{.count = 1, .colour = patch.colour, .shape = shape_of(patch, picture)};
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return g.group.colour == one.colour && g.group.shape == one.shape;
    });
    if (same == groups.end()) {
      groups.push_back({one, patch});
      continue;
    }
    ++same->group.count;
    same->box.left = std::min(same->box.left, patch.left), same->box.right = std::max(same->box.right, patch.right);
    same->box.top = std::min(same->box.top, patch.top), same->box.bottom = std::max(same->box.bottom, patch.bottom);
  }
  if (groups.size() == 1) return caption_of({.first = groups[0].group});
  if (groups.size() != 2) return absl::StrCat(groups.size(), " groups");
  std::set<std::string> captions;
  for (const auto& [a, b] : {std::pair(groups[0], groups[1]), {groups[1], groups[0]}}) {
    if (a.box.right < b.box.left) captions.insert(caption_of({a.group, b.group, false}));
    if (a.box.bottom < b.box.top) captions.insert(caption_of({a.group, b.group, true}));
  }
  return captions.size() == 1 ? *captions.begin() : absl::StrCat(captions.size(), " captions");
}

TEST(DrawnPictures, ThePictureDeterminesTheCaption) {
  for (const bool held_out : {false, true}) {
    const DrawnPictures pictures(20, held_out, 7, 256);
    for (int64_t i = 0; i < pictures.size(); ++i)
      EXPECT_EQ(read_caption(pictures.picture(i)), pictures.caption(i)) << "picture " << i;
  }
}

TEST(DrawnPictures, AreAFunctionOfSeedAndIndex) {
  const DrawnPictures one(10, false, 3), again(20, false, 3), other(10, false, 4);
  EXPECT_TRUE(same_bits(one.picture(4), again.picture(4)));
  EXPECT_EQ(one.caption(4), again.caption(4));
  EXPECT_FALSE(same_bits(one.picture(4), other.picture(4)));
  EXPECT_EQ(caption_of({{1, 0, 3}, DrawnGroup{2, 3, 1}, true}), "a red cross above two yellow squares");
  EXPECT_EQ(caption_of({{3, 1, 2}, std::nullopt, false}), "three green triangles");
}

TEST(DrawnPictures, HeldOutCaptionsAreNotSeen) {
  const DrawnPictures train(2000, false, 42), held_out(200, true, 42);
  std::set<std::string> seen, words;
  for (int64_t i = 0; i < train.size(); ++i) seen.insert(train.caption(i));
  for (int64_t i = 0; i < held_out.size(); ++i) EXPECT_FALSE(seen.contains(held_out.caption(i)));
}

// ---- Files, tokens, batches

class ImageCaptioning : public testing::Test {
 protected:
  struct Finished {
    int status;
    std::string out;
  };
  std::string at(const std::string& name) const { return (fs::path(folder_.path()) / name).string(); }
  static std::string bytes_of_file(const std::string& path) {
    std::stringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    return bytes.str();
  }
  Finished run(const std::string& options, const std::string& before = "RONDO_NUM_THREADS=1",
               const std::string& behind = "") {
    const int status = std::system(
        absl::StrCat(before, " ", tests::kImageCaptioning, " ", options, " >", at("log"), " 2>&1 ", behind).c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, bytes_of_file(at("log"))};
  }
  std::string captions_error(const std::string& lines) {
    std::ofstream(at("captions.tsv"), std::ios::binary) << lines;
    return error_of([&] { CaptionFile::read(folder_.path(), at("captions.tsv"), 10000); });
  }
  // A model that is small enough to train for some steps in a second.
  static std::string small() {
    return " --data=drawn --train_pictures=24 --held_out_pictures=6 --image_size=32 --n_layer=1 --n_embd=24 "
           "--batch_size=4 --max_steps=18 --eval_steps=9 --save_steps=3 --logging_steps=1 --max_length=24 ";
  }
  test::TempFolder folder_;
};

TEST_F(ImageCaptioning, BadLinesAreNamed) {
  write_pictures(DrawnPictures(3, false, 1, 32), 3, folder_.path());
  const auto file = CaptionFile::read(folder_.path(), at("captions.tsv"), 10000);
  ASSERT_EQ(file->size(), 3);
  EXPECT_EQ(file->caption(1), DrawnPictures(3, false, 1, 32).caption(1));
  EXPECT_TRUE(same_bits(file->picture(1).contiguous(), DrawnPictures(3, false, 1, 32).picture(1)));
  const std::string good = "picture00000.png\ta cat\r\n\n";
  const auto expect = [&](const std::string& line, const std::string& what) {
    const std::string error = captions_error(good + line);
    EXPECT_TRUE(absl::StrContains(error, "captions.tsv") && absl::StrContains(error, "3")) << error;
    EXPECT_TRUE(absl::StrContains(error, what)) << error;
  };
  EXPECT_EQ(captions_error(good), "");
  expect("picture00000.png a cat", "no tab");
  expect("\ta cat", "names no picture");
  expect("picture00000.png\t ", "no caption for picture00000.png");
  expect("picture00000.png\ta\tb", "two tabs");
  expect("nothing.png\ta cat", "nothing.png");
  expect("captions.tsv\ta cat", "captions.tsv");
  expect("picture00000.png\t\xff", "UTF-8");
  io::write_image(at("large.png"), Tensor::zeros({3, 101, 100}, kU8));
  expect("large.png\ta cat", "100 x 101 pixels; at most 10000 are allowed (--max_pixels)");
  EXPECT_TRUE(absl::StrContains(captions_error("\n"), "has no line"));
}

TEST_F(ImageCaptioning, CaptionsOfOnePictureStayTogether) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    io::write_image(at(absl::StrCat(i, ".png")), Tensor::zeros({1, 2, 2}, kU8));
    for (int k = 0; k < 2; ++k) absl::StrAppend(&lines, i, ".png\tcaption ", i, "\n");
  }
  std::ofstream(at("captions.tsv")) << lines;
  const auto [train, held_out] = CaptionFile::read(folder_.path(), at("captions.tsv"), 100)->split(0.3);
  EXPECT_EQ(train->size() + held_out->size(), 80);
  EXPECT_GT(held_out->size(), 8);
  EXPECT_LT(held_out->size(), 50);
  std::set<std::string> seen;
  for (int64_t i = 0; i < train->size(); ++i) seen.insert(train->caption(i));
  for (int64_t i = 0; i < held_out->size(); ++i) EXPECT_FALSE(seen.contains(held_out->caption(i)));
}

TEST_F(ImageCaptioning, TokenizersExpressEachCaption) {
  const std::vector<std::string> captions = {"two cats, asleep", "two dogs", "a \"quoted\" caf\xC3\xA9"};
  save_word_tokenizer(word_tokenizer_json(captions, 100), at("words"));
  const auto words = text::AutoTokenizer::from_pretrained(at("words"));
  EXPECT_EQ(words.token_to_id("[PAD]"), 0);
  EXPECT_EQ(words.pad_token_id(), 0);
  EXPECT_EQ(words.encode("two dogs").size(), 2u);
  EXPECT_EQ(words.decode(words.encode("two dogs")), "two dogs");
  for (const std::string& caption : captions)
    for (const int32_t id : words.encode(caption)) EXPECT_NE(id, words.token_to_id("[UNK]"));
  EXPECT_EQ(words.encode("dots").size(), 4u);  // no word, but its characters are known
  EXPECT_TRUE(
      absl::StrContains(error_of([&] { word_tokenizer_json(captions, 20); }), "--vocab_size=20: the captions have"));
  // Room for one word only: the most frequent one.
  const auto few = text::PreTrainedTokenizer::from_json(word_tokenizer_json(std::vector<std::string>{"ab ba ab"}, 9),
                                                        "json");
  EXPECT_EQ(few.encode("ab ba").size(), 3u);
}

TEST_F(ImageCaptioning, BatchesHaveLabelsAndPixels) {
  const auto pictures = std::make_shared<DrawnPictures>(10, false, 1, 16);
  std::vector<std::string> captions;
  for (int64_t i = 0; i < 10; ++i) captions.push_back(pictures->caption(i));
  const auto words = text::PreTrainedTokenizer::from_json(word_tokenizer_json(captions, 200), "json");
  const nn::ImageProcessor processor({.size = {.height = 16, .width = 16}});
  const auto set = encoded(*pictures, words, 1, 2, 24);
  CaptionBatches batches(set, processed(pictures, processor),
                         {.order = {.batch_size = 4, .shuffle = false, .group_by_length = false, .multiple_of = 1}});
  const data::Batch batch = *batches.next();
  ASSERT_EQ(to_string(batch[1].sizes()), "[4, 3, 16, 16]");
  EXPECT_EQ(batch[0].size(0), 4);
  for (int64_t b = 0; b < 4; ++b) {
    EXPECT_TRUE(
        same_bits(batch[1].select(0, b).contiguous(), processor(pictures->picture(b)).select(0, 0).contiguous()));
    std::vector<int64_t> labels = batch[0].select(0, b).to_vector<int64_t>();
    std::erase(labels, -100);
    ASSERT_FALSE(labels.empty());
    EXPECT_EQ(labels.back(), 2);
    labels.pop_back();
    EXPECT_EQ(words.decode(std::span<const int64_t>(labels)), pictures->caption(b));
  }
  // How they are seen is a function of (seed, epoch, example).
  const auto pixels = [&](const PixelsOf& of, int64_t epoch, double zoom, int64_t shift) {
    CaptionBatches seen(set, of, {.order = {.batch_size = 4, .shuffle = false}, .zoom = zoom, .shift = shift});
    seen.seek({.epoch = epoch, .batch = 1});
    return (*seen.next())[1];
  };
  for (const double zoom : {0.0, 0.2}) {
    const PixelsOf of = processed(pictures, processor);
    EXPECT_TRUE(same_bits(pixels(of, 0, zoom, 3), pixels(of, 0, zoom, 3)));
    EXPECT_FALSE(same_bits(pixels(of, 0, zoom, 3), pixels(of, 1, zoom, 3)));
  }
  // A slope of 1 to the right and of 100 downwards: a scale divides both, a shift keeps them.
  const Tensor ramp =
      (Tensor::arange(16, {kF32, kCPU}) + Tensor::arange(16, {kF32, kCPU}).view({16, 1}) * 100).view({1, 16, 16});
  std::set<float> slopes;
  for (const double zoom : {0.0, 0.2}) {
    const Tensor seen = pixels([&](int64_t) { return ramp; }, 0, zoom, 2);
    for (int64_t b = 0; b < 4; ++b) {
      const Tensor one = seen.select(0, b).select(0, 0);  // (16, 16); its middle shows no repeated edge
      const float right = one[8][9].item<float>() - one[8][8].item<float>();
      EXPECT_NEAR(one[9][8].item<float>() - one[8][8].item<float>(), 100 * right, 0.05);
      EXPECT_GE(right, zoom == 0 ? 1 : 1 / 1.2 - 1e-3);
      EXPECT_LE(right, zoom == 0 ? 1 : 1 / 0.8 + 1e-3);
      slopes.insert(right);
    }
  }
  EXPECT_EQ(slopes.size(), 5u);
  const std::string error = error_of([&] { encoded(*pictures, words, 1, 2, 3); });
  EXPECT_TRUE(absl::StrContains(error, "at most 3 are allowed (--max_length)")) << error;
}

// The lengths of the study, and what each padding makes of them.
TEST_F(ImageCaptioning, PaddingChoosesSizes) {
  CaptioningOptions o;
  Flags flags = flags_of(o);
  complete(o, flags);
  EXPECT_EQ(o.data, "random");
  EXPECT_EQ(o.output_dir, "");
  const auto captions = random_captions(4000, 256, 1024, 1, 2, 5);
  int64_t below_32 = 0, above_64 = 0;
  for (int64_t i = 0; i < captions->size(); ++i) {
    const int64_t length = captions->columns(i);
    EXPECT_TRUE(length >= 5 && length <= 255 && length != 32 && length != 64) << length;
    below_32 += length<32, above_64 += length> 64;
  }
  EXPECT_NEAR(static_cast<double>(below_32) / 4000, 0.9, 0.02);
  EXPECT_NEAR(static_cast<double>(above_64) / 4000, 0.01, 0.006);
  const auto sizes = [&](const std::string& padding, const std::string& buckets) {
    o.padding = padding, o.compiler.buckets = buckets, o.max_length = 256;
    return CaptionBatches(captions, random_pixels(3, 16, 1), {.order = padded(o, {.batch_size = 16})}).sizes();
  };
  EXPECT_EQ(sizes("max", ""), std::vector<int64_t>{256});
  EXPECT_GT(sizes("longest", "").size(), 60u);
  for (const int64_t size : sizes("multiple", "")) EXPECT_EQ(size % 8, 0);
  EXPECT_EQ(sizes("buckets", ""), (std::vector<int64_t>{32, 64, 96, 128, 160, 192, 224, 256}));
  EXPECT_EQ(sizes("buckets", "24,64,256"), (std::vector<int64_t>{24, 64, 256}));
  EXPECT_LE(sizes("buckets", "3").size(), 3u);
}

// ---- The program

TEST_F(ImageCaptioning, RandomDataWithEachPadding) {
  for (const char* padding : {"max", "longest", "multiple", "buckets"}) {
    const Finished done = run(
        absl::StrCat("--train_pictures=40 --n_layer=1 --n_embd=24 --image_size=32 --batch_size=4 "
                     "--max_steps=3 --logging_steps=1 --warm_up --padding=",
                     padding));
    EXPECT_EQ(done.status, 0) << done.out;
    EXPECT_TRUE(absl::StrContains(done.out, "step 3/3")) << done.out;
    EXPECT_TRUE(absl::StrContains(done.out, "warm-up:")) << done.out;
  }
  EXPECT_FALSE(fs::exists("captioning"));
}

// Killed with SIGKILL and resumed: losses, captions and the saved model are those of an undisturbed run.
TEST_F(ImageCaptioning, AKilledRunGoesOnExactly) {
  const Finished whole = run(small() + "--output_dir=" + at("a"));
  ASSERT_EQ(whole.status, 0) << whole.out;
  EXPECT_TRUE(absl::StrContains(whole.out, "greedy captions: ")) << whole.out;
  EXPECT_TRUE(absl::StrContains(whole.out, "4 beams' captions: ")) << whole.out;
  bool killed = false;
  Finished done{-1, ""};
  for (int i = 0; i < 20 && done.status != 0; ++i) {
    const std::string watch = absl::StrCat("& p=$!; while kill -0 $p 2>/dev/null && [ $(cat ", at("b/metrics.jsonl"),
                                           " 2>/dev/null | wc -l) -lt ", 4 + 5 * i,
                                           " ]; do sleep 0.01; done; kill -9 $p 2>/dev/null; wait $p");
    done = run(small() + "--resume_from_checkpoint=true --output_dir=" + at("b"), "RONDO_NUM_THREADS=1",
               i < 2 ? watch : "");
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
  for (const char* file : {"held_out.tsv", "held_out_beams.tsv", "model.safetensors", "tokenizer.json"})
    EXPECT_EQ(bytes_of_file(at(absl::StrCat("a/", file))), bytes_of_file(at(absl::StrCat("b/", file)))) << file;
  EXPECT_EQ(io::image_info(at("a/pictures/step-000018.png")).width, 3 * 36 + 4);

  // Captions of files, by the saved model.
  const Finished drawn = run("--data=drawn --image_size=32 --write_pictures=" + at("drawn"));
  EXPECT_EQ(drawn.status, 0) << drawn.out;
  EXPECT_EQ(CaptionFile::read(at("drawn"), at("drawn/captions.tsv"), 10000)->size(), 20);
  const Finished predicted = run(absl::StrCat("--init_from=", at("a"), " --predict ", at("drawn/picture00003.png"), " ",
                                              at("drawn"), " --num_beams=2"));
  EXPECT_EQ(predicted.status, 0) << predicted.out;
  EXPECT_EQ(std::count(predicted.out.begin(), predicted.out.end(), '\n'), 21) << predicted.out;
  const Finished none = run(absl::StrCat("--predict --output_dir=", at("a")));
  EXPECT_EQ(none.status, 1);
  EXPECT_TRUE(absl::StrContains(none.out, "--predict needs pictures")) << none.out;
  EXPECT_TRUE(absl::StrContains(run("--data=drawn --image_size=32 --write_pictures=" + at("drawn")).out,
                                "captions.tsv: is there already"));
  // Another meaning of the same shapes.
  const Finished heads = run(small() + "--n_head=2 --resume_from_checkpoint=true --output_dir=" + at("a"));
  EXPECT_EQ(heads.status, 1);
  EXPECT_TRUE(absl::StrContains(heads.out, "take the same options and captions")) << heads.out;
  EXPECT_TRUE(absl::StrContains(run("--n_layer=2 --init_from=" + at("a") + " --predict " + at("drawn")).out,
                                "--n_layer: the model in "));
  // Trains on from the saved model, on files.
  const Finished further = run(absl::StrCat("--images=", at("drawn"), " --captions=", at("drawn/captions.tsv"),
                                            " --validation_captions=", at("drawn/captions.tsv"),
                                            " --max_length=24 --batch_size=10 --init_from=", at("a"),
                                            " --max_steps=2 --output_dir=", at("c")));
  EXPECT_EQ(further.status, 0) << further.out;
  EXPECT_EQ(bytes_of_file(at("a/tokenizer.json")), bytes_of_file(at("c/tokenizer.json")));
}

// Real pictures with transparent ground, and their names: every one of them is learned.
TEST_F(ImageCaptioning, Emoji) {
  const std::string archive = shared_data("noto-emoji-32.tar");
  if (archive.empty()) GTEST_SKIP() << "../shared/data has no pictures";
  ASSERT_EQ(std::system(absl::StrCat("tar xf ", archive, " -C ", at("")).c_str()), 0);
  std::ifstream all(at("noto-emoji-32/captions.tsv"));
  std::ofstream some(at("64.tsv"));
  int line_number = 0, taken = 0;
  for (std::string line; taken < 64 && std::getline(all, line);)
    if (line_number++ % 25 == 0) some << line.substr(0, line.rfind('\t')) << "\n", ++taken;
  some.close();
  const Finished done = run(
      absl::StrCat("--images=", at("noto-emoji-32/png/32"), " --captions=", at("64.tsv"),
                   " --validation_captions=", at("64.tsv"), " --image_size=32 --n_layer=2 --n_embd=64",
                   " --max_steps=400 --learning_rate=3e-3 --eval_steps=400 --output_dir=", at("emoji")));
  EXPECT_EQ(done.status, 0) << done.out;
  EXPECT_TRUE(absl::StrContains(done.out, "greedy captions: 64 of 64 held-out ones are exact")) << done.out;
  EXPECT_TRUE(absl::StrContains(done.out, "4 beams' captions: 64 of 64 held-out ones are exact")) << done.out;
}

// Two processes share the batches and the held-out pictures.
TEST_F(ImageCaptioning, TwoProcesses) {
  const Finished done = run(small() + "--check_ranks --num_beams=1 --output_dir=" + at("two"),
                            absl::StrCat("RONDO_NUM_THREADS=1 ", tests::kRondorun, " --nproc-per-node 2"));
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_TRUE(absl::StrContains(done.out, "2 processes share the batches")) << done.out;
  EXPECT_TRUE(absl::StrContains(done.out, " of 6 held-out ones are exact")) << done.out;
  EXPECT_TRUE(fs::exists(at("two/model.safetensors")));
}

TEST_F(ImageCaptioning, WhatCannotWorkIsSaid) {
  const auto expect = [&](const std::string& options, const std::string& what) {
    const Finished done = run(options);
    EXPECT_EQ(done.status, 1) << options;
    EXPECT_TRUE(absl::StrContains(done.out, what)) << done.out;
  };
  expect("--captions=x.tsv", "--images=FOLDER and --captions=FILE go together");
  expect("--predict", "--predict needs pictures");
  expect("--image_size=30", "--image_size must be a multiple of --patch_size, got 30 and 16");
  expect("--padding=longest --buckets=4", "--buckets needs --padding=buckets");
  expect("--padding=buckets --buckets=8,4", "ascending sizes");
  expect("--images=. --captions=" + at("nothing.tsv"), "nothing.tsv");
  expect("--data=drawn --train_pictures=9 --batch_size=10 --output_dir=" + at("few"),
         "9 captions make no whole batch of 10: set a smaller --batch_size");
}

}  // namespace
}  // namespace rondo::examples
