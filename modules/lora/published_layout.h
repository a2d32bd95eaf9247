// How Transformers names and stores the modules of a model. Not installed: lora.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/modules/module.h"

namespace rondo::nn {

// A module's rows of outputs that Transformers has as a module of its own, such as the queries of ViT's qkv. Or a whole
// module: rows is 0.
struct PublishedPart {
  std::string path;  // as Transformers names it
  int64_t row = 0, rows = 0;
  std::string leaf() const { return path.substr(path.rfind('.') + 1); }
};

// How Transformers names and stores the modules of this model.
struct PublishedLayout {
  std::string prefix;                                // of every path
  std::vector<std::string> without;                  // but of those that begin with these
  std::optional<std::string> conv1d = std::nullopt;  // below this path, "" for all, weights of layers are (in, out)
  const char* task_type = nullptr;                   // PEFT's
  std::string embedding_is_output = {};  // the path of an embedding whose weight the output layer reads, too
  // A family whose modules have other names there, and may be cut into parts. Null: names differ by the prefix only.
  std::vector<PublishedPart> (*parts)(const ModuleBase& model, const std::string& path) = nullptr;
};
// Transformers' parts for the module at `path`: one, or several by row.
std::vector<PublishedPart> published_parts(const PublishedLayout& layout, const ModuleBase& model,
                                           const std::string& path);
PublishedLayout published_layout(const ModuleBase& model);

}  // namespace rondo::nn
