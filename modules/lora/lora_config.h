// PEFT's adapter_config.json. Not installed: lora.h.
#pragma once

#include <string>

#include "rondo/modules/lora/lora_options.h"
#include "rondo/modules/lora/published_layout.h"

namespace rondo::nn {

// All of the options but the adapter's name and `mergeable`, which are not in the file. Throws FileError if the file is
// no LoRA config, or if fields ask for something that Rondo does not support: the message names all of them.
LoraOptions read_adapter_config(const std::string& path);

// Targets and modules to save: paths or their ends, as Transformers names them.
std::string adapter_config_text(const LoraOptions& options, const PublishedLayout& layout,
                                const std::string& base_model_name_or_path);

}  // namespace rondo::nn
