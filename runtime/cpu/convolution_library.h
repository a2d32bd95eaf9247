// One convolution with everything but the addresses, through oneDNN, in f32 and bf16. Thread safe.
//
// Inside, activations are always channels last, the library's fast layout; an operand in the usual layout is converted
// piece by piece, by the thread that uses it. So the layout of operands does not change a bit of the result.
//
// Note [Pieces]. The work is cut into images, or bands of an image's rows where there are few images. Each piece is one
// primitive that runs on one thread (onednn.h), and the pieces run in the pool. The gradient of the weight is a sum
// over pieces: each leaves its own, and they are added in order. Where a weight gathers from few pixels, a piece makes
// the weights of some output channels instead. Cuts depend on the call's shapes alone, so results do not depend on the
// number of threads.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "rondo/runtime/cpu/convolution_call.h"
#include "rondo/runtime/cpu/convolution_weights.h"

namespace rondo::cpu {

class LibraryConvolution {
 public:
  // Null: the library has no primitive for this call, or only its reference one, which is slower than patches.
  // Making one takes a millisecond or more, so the most recent 256 are kept, over all threads.
  static std::shared_ptr<const LibraryConvolution> get(const ConvolutionCall& call);
  static void trim();  // forgets those that are kept; those in use live on

  ~LibraryConvolution();
  void run(const ConvolutionOperands& operands) const;
  // For tests.
  size_t pieces() const { return pieces_.size(); }

 private:
  class Step;
  class Conversion;
  class Primitive;
  struct Piece {
    const Primitive* primitive;
    int64_t input, output;  // where its activations start, in elements
    int64_t weight;         // gradient of the weight: where its sums start, in elements
  };
  struct Cut {
    int64_t images = 1, bands = 1;  // images of a piece; pieces of an image
    int64_t slices = 1;             // gradient of the weight: pieces of the output channels, of all images
  };
  explicit LibraryConvolution(const ConvolutionCall& call);
  static Cut cut_of(const ConvolutionCall& call, bool may_slice);
  // False: the library refuses a piece.
  bool prepare(const Cut& cut);
  const Primitive* primitive_of(const ConvolutionCall& part);  // null: the library refuses it
  bool add_piece(ConvolutionCall part, int64_t input_row, int64_t output_row, int64_t image);
  bool add_slices(int64_t slices);
  void plan_packing();
  bool packs() const { return blocks_ || !packing_.empty(); }
  void pack(std::byte* from, std::byte* to) const;
  void add_parts(float* sums) const;

  const ConvolutionCall call_;
  std::vector<std::unique_ptr<const Primitive>> primitives_;  // one for each shape of a piece
  std::vector<Piece> pieces_;
  // Between the weight as the caller has it and as the primitives want it: one of the two, or nothing if they are the
  // same.
  std::optional<WeightBlocks> blocks_;
  std::vector<std::unique_ptr<const Step>> packing_;
  int64_t packed_bytes_ = 0;
  int64_t sums_ = 1;  // gradient of the weight: how many whole ones the pieces leave
};

}  // namespace rondo::cpu
