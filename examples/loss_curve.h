// The loss curve as an SVG picture that needs nothing else: no fonts, scripts or style sheets.
#pragma once

#include <span>
#include <string>

namespace rondo::examples {

struct Record;

// Training and validation loss over the step.
std::string loss_curve_svg(std::span<const Record> records);

}  // namespace rondo::examples
