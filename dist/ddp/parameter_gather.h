// ParameterGather: brings the elements that each rank has updated to all ranks, bucket by bucket, while the program
// goes on.
//
// Note [Values under way]. From start() until a bucket has landed, its parameters have no storage, and this object is
// their recorder, as a recorder is for values that are recorded but not computed yet (recorder.h). Code that reads such
// a tensor calls flush(), which waits for the bucket and gives the storage back. So a forward waits for each parameter
// at its first use, and never reads old elements through the parameter's handle. A view or a detached handle that was
// made before start() reads old elements until the bucket has landed.
//
// On a device, a bucket lands when its copies are enqueued, and its collective may still fail afterwards. wait()
// detects such a failure: it marks the bucket's parameters as under way again, permanently, so that every read of them
// throws.
//
// Thread safety: the thread that trains. Before another thread reads a parameter, call wait().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rondo/dist/groups/process_group.h"
#include "rondo/optim/param_slot.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::dist {

class ParameterGather final : public Recorder {
 public:
  // A range of a parameter's elements, and its place in a row of a bucket.
  struct Piece {
    size_t parameter;
    int64_t begin, numel;
    int rank;
    int64_t offset;  // where the piece begins in the row
    Tensor source;   // only if this rank has updated the piece: the new values, one-dimensional
  };

  explicit ParameterGather(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  // Waits for the buckets under way, except while an exception unwinds the stack. Afterwards, a read of a parameter
  // that has not landed throws.
  ~ParameterGather() override;

  // `copy`: undefined, or a tensor in another dtype that receives the parameter's values, too.
  size_t add_parameter(Tensor parameter, Tensor copy);
  // `memory`: at least (world_size, row) elements of `dtype`. The caller does not use it from start() until the bucket
  // has landed.
  size_t add_bucket(std::vector<Piece> pieces, const Tensor& memory, int64_t row, DType dtype);
  // Replaces the source of one of this rank's pieces.
  void set_source(size_t bucket, size_t piece, Tensor source) {
    buckets_[bucket].pieces[piece].source = std::move(source);
  }

  // Returns the contents that a parameter had when it last landed.
  const optim::Contents& landed(size_t parameter) const { return parameters_[parameter].landed; }

  void start(size_t bucket, const std::string& name);
  void wait(size_t bucket);
  void wait();

  void record(const OpDef&, std::span<const Tensor* const>, const Attrs&, std::span<Tensor>, bool,
              std::source_location where) override;
  // Does nothing: a parameter under way lacks its memory, not its history.
  void interrupt(const char*, std::source_location) override {}
  void flush(const TensorImpl& tensor, std::source_location where) override;

 private:
  struct Parameter {
    Tensor tensor, copy;
    Storage storage, copy_storage;  // the memory of `tensor` and `copy` while the parameter is under way
    std::vector<size_t> buckets;
    optim::Contents landed;
    size_t under_way = 0;  // how many of its buckets are under way
  };
  struct Bucket {
    Tensor all;  // (world_size, row)
    std::vector<Piece> pieces;
    std::vector<size_t> parameters;
    Work work;  // the gather that the last start() issued
    bool under_way = false;
  };
  void take_parameter(Parameter& parameter);
  void revoke_failed();
  void take_storage(Tensor& tensor, Storage& kept);
  static void give_back(Tensor& tensor, Storage& kept);

  const std::shared_ptr<ProcessGroup> group_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::unordered_map<const TensorImpl*, size_t> parameter_of_;
};

}  // namespace rondo::dist
