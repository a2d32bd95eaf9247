// The loss curve as an SVG picture that needs nothing else: no fonts, scripts or style sheets.
#pragma once

#include <span>
#include <string>

#include "rondo/optim/trainer/metrics_file.h"

namespace rondo::examples {

// Returns the picture: training and validation loss over the steps.
std::string loss_curve_svg(std::span<const optim::MetricsRecord> records);

}  // namespace rondo::examples
