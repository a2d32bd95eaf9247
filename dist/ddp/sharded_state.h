// Converts the state of a sharded optimizer to the state of whole parameters, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/dist/groups/process_group.h"
#include "rondo/modules/state_dict.h"
#include "rondo/optim/param_slot.h"

namespace rondo::dist {

// What one slot of the sharded optimizer holds on this rank.
struct ShardPiece {
  size_t parameter = 0;          // index among the optimizer's parameters before it was sharded
  std::optional<size_t> bucket;  // index among this optimizer's buckets; none: a frozen parameter, whole on every rank
  size_t slot_in_bucket = 0;
  int64_t begin = 0, numel = 0;  // the range of the parameter's elements that the piece has
  int64_t offset = 0;            // the place of that range in this rank's row of the bucket
  bool is_cut = false;           // the slot is one-dimensional; false: the whole parameter, or nothing
  bool is_mine = true;           // false: a whole parameter of another rank, or no element
  bool has_master = false;       // the optimizer updates this rank's f32 master weights in place of the parameter
  Tensor home;                   // the piece in the parameter's own memory, one-dimensional
  bool is_unsure = true;         // with master weights: the parameter may differ from the rounded master weights
};

// A collective. Returns the state of whole parameters. `local`: state_dict() of the optimizer over its pieces, with
// "state.<i>.master" for master weights. `wanted`: selects which states of a parameter are returned, by their name
// after "state.<i>.". The options of all groups are always returned.
nn::StateDict gather_state(ProcessGroup& group, const std::vector<Tensor>& parameters,
                           const std::vector<ShardPiece>& pieces, const nn::StateDict& local,
                           std::optional<int> only_on, absl::FunctionRef<bool(std::string_view name)> wanted);

// Returns the part of `whole`, the state of whole parameters, that belongs to the pieces, under the names of their
// slots. Throws StateDictError for names and shapes that do not fit the parameters; its message begins with `what`.
nn::StateDict cut_state(const char* what, const std::vector<Tensor>& parameters, const std::vector<ShardPiece>& pieces,
                        const std::vector<optim::ParamSlot>& slots, const nn::StateDict& whole);

}  // namespace rondo::dist
