// How Transformers names and stores the modules of a model. This header is not installed; users include lora.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/modules/module.h"

namespace rondo::nn {

// Rows of a module's output that are a module of their own in Transformers, such as the queries of ViT's qkv. rows = 0:
// the whole module.
struct PublishedPart {
  std::string path;  // its path in Transformers
  int64_t row = 0, rows = 0;
  std::string leaf() const { return path.substr(path.rfind('.') + 1); }
};

// How Transformers names and stores the modules of this model.
struct PublishedLayout {
  std::string prefix;                                // the prefix of every path in Transformers
  std::vector<std::string> without;                  // paths that begin with one of these have no prefix
  std::optional<std::string> conv1d = std::nullopt;  // below this path, Linear weights are (in, out); "": everywhere
  const char* task_type = nullptr;                   // the task's name in PEFT
  std::string embedding_is_output = {};  // the path of an embedding whose weight the output layer reads, too
  // Set for a family some of whose modules have other names in Transformers, or are several modules in Transformers.
  // Null: names differ by the prefix only.
  std::vector<PublishedPart> (*parts)(const ModuleBase& model, const std::string& path) = nullptr;
};
// Returns Transformers' parts for the module at `path`: one, or several by row.
std::vector<PublishedPart> published_parts(const PublishedLayout& layout, const ModuleBase& model,
                                           const std::string& path);
PublishedLayout published_layout(const ModuleBase& model);

}  // namespace rondo::nn
