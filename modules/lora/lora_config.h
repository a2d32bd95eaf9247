// PEFT's adapter_config.json. This header is not installed; users include lora.h.
#pragma once

#include <string>

#include "rondo/modules/lora/lora_options.h"
#include "rondo/modules/lora/published_layout.h"

namespace rondo::nn {

// Reads all options except the adapter's name and `mergeable`, which the file does not have. Throws FileError if the
// file is no LoRA config, or if fields ask for something that Rondo does not support: the message names all of them.
LoraOptions read_adapter_config(const std::string& path);

// Returns the text of an adapter_config.json. Its targets and modules to save are paths, or ends of paths, as
// Transformers names them.
std::string adapter_config_text(const LoraOptions& options, const PublishedLayout& layout,
                                const std::string& base_model_name_or_path);

}  // namespace rondo::nn
