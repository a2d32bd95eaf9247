// A convolution in f32 or bf16 that oneDNN computes, prepared except for the addresses of its operands. Thread safe.
//
// Internally activations are always channels last, the library's fast layout. An operand in the usual layout (B, C, H,
// W) is converted piece by piece, by the thread that uses it. So the result does not depend on the layouts, bit for
// bit.
//
// Note [Pieces]. The work is cut into images, or, if there are few images, into bands of rows of an image. Each piece
// is one primitive that runs on one thread (onednn.h), and the pieces run in the pool. The gradient of the weight is a
// sum over pieces: each piece writes its own sum, and these are added in order. If the weight's gradient sums over few
// pixels, a piece computes it for some output channels instead. Cuts depend only on the shapes of the call, so results
// do not depend on the number of threads.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "rondo/runtime/cpu/convolution_call.h"
#include "rondo/runtime/cpu/convolution_weights.h"

namespace rondo::cpu {

class LibraryConvolution {
 public:
  // Returns null if the library has no primitive for this call, or only its reference primitive, which is slower than
  // convolution_patches.h. Making a LibraryConvolution takes a millisecond or more, so all threads share a cache of the
  // 256 most recent ones.
  static std::shared_ptr<const LibraryConvolution> get(const ConvolutionCall& call);
  static void trim();  // empties the cache; objects in use live on

  ~LibraryConvolution();
  void run(const ConvolutionOperands& operands) const;
  // Returns the number of pieces, for tests.
  size_t pieces() const { return pieces_.size(); }

 private:
  class Step;
  class Conversion;
  class Primitive;
  struct Piece {
    const Primitive* primitive;
    int64_t input, output;  // the offsets of its activations, in elements
    int64_t weight;         // gradient of the weight: the offset of its sums, in elements
  };
  struct Cut {
    int64_t images = 1, bands = 1;  // images in a piece; pieces in an image
    int64_t slices = 1;             // gradient of the weight: slices of output channels, each summed over all images
  };
  explicit LibraryConvolution(const ConvolutionCall& call);
  static Cut cut_of(const ConvolutionCall& call, bool may_slice);
  // Makes the pieces of `cut` and their primitives. Returns false if the library refuses a piece.
  bool prepare(const Cut& cut);
  const Primitive* primitive_of(const ConvolutionCall& part);  // returns null if the library refuses it
  bool add_piece(ConvolutionCall part, int64_t input_row, int64_t output_row, int64_t image);
  bool add_slices(int64_t slices);
  void plan_packing();
  bool packs() const { return blocks_ || !packing_.empty(); }
  void pack(std::byte* from, std::byte* to) const;
  void add_parts(float* sums) const;

  const ConvolutionCall call_;
  std::vector<std::unique_ptr<const Primitive>> primitives_;  // one for each shape of a piece
  std::vector<Piece> pieces_;
  // Conversion between the caller's layout of the weight and that of the primitives: `blocks_` or `packing_`, or none
  // if the layouts are equal.
  std::optional<WeightBlocks> blocks_;
  std::vector<std::unique_ptr<const Step>> packing_;
  int64_t packed_bytes_ = 0;
  int64_t sums_ = 1;  // gradient of the weight: how many partial sums of the whole weight the pieces write
};

}  // namespace rondo::cpu
