// All families of published models.
#pragma once

#include <span>
#include <string>

#include "rondo/modules/pretrained/published.h"

namespace rondo::nn {

std::span<const Family* const> families();

// Describes `module` by its family. `model_type` chooses among families that share a class; "": the first that fits.
// Throws Error if the module belongs to no family.
Published describe(ModuleBase& module, const std::string& model_type = "");

}  // namespace rondo::nn
