// The rows of the published study: a ViT-base with a GPT-2, batches of 64, captions of up to 256 tokens, on one A100.
#pragma once

#include <span>

#include "rondo/examples/study.h"

namespace rondo::examples {

// Returns the rows in the order of the study's table.
std::span<const StudyRow> study_rows();

}  // namespace rondo::examples
