// Finds the modules that get an adapter. This header is not installed; users include lora.h.
#pragma once

#include <string>
#include <vector>

#include "rondo/modules/lora/lora_layer.h"
#include "rondo/modules/lora/lora_options.h"
#include "rondo/modules/lora/published_layout.h"

namespace rondo::nn {

struct LoraTarget {
  std::string name;
  ModuleBase& module;
  std::vector<PublishedPart> parts = {};  // the parts that get an adapter; empty: the whole module
  std::vector<LoraSize> sizes = {};       // one size for each part, or for the whole module
};

struct LoraMatch {
  std::vector<LoraTarget> targets;  // Linear and Embedding modules, in the order of the tree
  std::vector<NamedModule> saved;   // the outermost modules that modules_to_save names
};

// True if `targets` holds names of modules: it is not all-linear, and there is no pattern.
bool names_modules(const LoraOptions& options);

// Throws Error as add_lora() does. A path matches as it is, or as Transformers names it (PublishedLayout).
LoraMatch match_lora_targets(const char* function, ModuleBase& model, const LoraOptions& options);
// As match_lora_targets(), for names from a file: names that match nothing are left out, and so are targets other than
// Linear and Embedding. The targets have no sizes yet, because these depend on which parts the file has.
LoraMatch match_lora_targets_leniently(const char* function, ModuleBase& model, const LoraOptions& options);
// Gives the targets their sizes. A whole module whose parts have different sizes is replaced by its parts. `lenient`: a
// pattern may fit no target.
void set_sizes(const char* function, const ModuleBase& model, const LoraOptions& options, bool lenient,
               std::vector<LoraTarget>& targets);

}  // namespace rondo::nn
