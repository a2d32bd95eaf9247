// The loss curve as an SVG picture that needs nothing else: no fonts, scripts or style sheets.
#pragma once

#include <span>
#include <string>

#include "rondo/optim/trainer/metrics_file.h"

namespace rondo::examples {

// Training and validation loss over the step.
std::string loss_curve_svg(std::span<const optim::MetricsRecord> records);

}  // namespace rondo::examples
