// The weights of one file or of a folder: model.safetensors, or the shards that model.safetensors.index.json names.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rondo/modules/pretrained/published.h"
#include "rondo/runtime/checkpoint/safetensors.h"

namespace rondo::nn {

class WeightFiles {
 public:
  // Opens every file and checks every header. `path`: the folder, or a safetensors file. Throws FileError.
  WeightFiles(const std::string& path, io::Reading reading);

  struct Place {
    const io::SafetensorsFile* file = nullptr;
    const io::TensorEntry* entry = nullptr;
  };
  // Returns the place of each tensor, by name.
  const std::map<std::string, Place, std::less<>>& places() const { return places_; }

 private:
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files_;
  std::map<std::string, Place, std::less<>> places_;
};

// Gives `module`, which has no memory for its parameters, the values of the files. Throws StateDictError, which lists
// every tensor that is missing, unexpected or of another shape, before anything is read.
void load_weights(ModuleBase& module, const Published& published, const WeightFiles& files,
                  const PretrainedOptions& options);

// Returns the tensors as a file holds them: views where possible. Throws Error if the module holds other tensors.
io::TensorMap published_tensors(const ModuleBase& module, const Published& published);

// Writes model.safetensors, or shards and their index. Removes the weights of an older save once the new ones are
// complete.
void save_weights(const io::TensorMap& tensors, const std::string& folder, const SaveOptions& options);

}  // namespace rondo::nn
