#include "rondo/examples/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/format.h"

namespace rondo::examples {
namespace {

struct Point {
  double x, y;
};

// Maps data to pixels. Its ticks are at round numbers.
struct Axis {
  double low, high, tick;
  double from, to;  // pixels
  double operator()(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

Axis axis(double low, double high, int ticks, double from, double to) {
  if (!(high > low)) high = low + 1;
  const double rough = (high - low) / ticks, magnitude = std::pow(10, std::floor(std::log10(rough)));
  double tick = 10 * magnitude;
  for (const double nice : {1.0, 2.0, 5.0})
    if (nice * magnitude >= rough) {
      tick = nice * magnitude;
      break;
    }
  return {std::floor(low / tick) * tick, std::ceil(high / tick) * tick, tick, from, to};
}

// Returns at most `most` points. Each is the mean of a run of neighbours; all runs have the same length, except the
// last.
std::vector<Point> thinned(const std::vector<Point>& points, size_t most) {
  const size_t run = std::max<size_t>(1, (points.size() + most - 1) / most);
  std::vector<Point> out;
  for (size_t i = 0; i < points.size(); i += run) {
    const size_t end = std::min(points.size(), i + run);
    Point mean{0, 0};
    for (size_t k = i; k < end; ++k) mean = {mean.x + points[k].x, mean.y + points[k].y};
    const auto n = static_cast<double>(end - i);
    out.push_back({mean.x / n, mean.y / n});
  }
  return out;
}

std::string polyline(const std::vector<Point>& points, const Axis& x, const Axis& y, const char* style) {
  std::string text = absl::StrCat("<polyline fill=\"none\" ", style, " points=\"");
  for (const Point& p : points) append_formatted(&text, "%.1f,%.1f ", x(p.x), y(p.y));
  return text + "\"/>\n";
}

}  // namespace

std::string loss_curve_svg(std::span<const optim::MetricsRecord> records) {
  constexpr double kWidth = 760, kHeight = 420, kLeft = 64, kRight = 24, kTop = 40, kBottom = 52;
  constexpr const char *kTrain = "stroke=\"#4c78a8\" stroke-width=\"1.2\"",
                       *kVal = "stroke=\"#e4572e\" stroke-width=\"2.2\"";
  std::vector<Point> train, val;
  for (const optim::MetricsRecord& r : records) {
    if (std::isfinite(r.loss)) train.push_back({static_cast<double>(r.step), r.loss});
    if (r.eval_loss && std::isfinite(*r.eval_loss)) val.push_back({static_cast<double>(r.step), *r.eval_loss});
  }
  train = thinned(train, 1000);
  double low = INFINITY, high = -INFINITY;
  for (const auto* points : {&train, &val})
    for (const Point& p : *points) low = std::min(low, p.y), high = std::max(high, p.y);
  if (!(low <= high)) low = 0, high = 1;
  const double last_step = records.empty() ? 1 : static_cast<double>(records.back().step);
  const Axis x = axis(0, last_step, 8, kLeft, kWidth - kRight), y = axis(low, high, 6, kHeight - kBottom, kTop);

  std::string svg = formatted(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
      "font-family=\"sans-serif\" font-size=\"13\" fill=\"#333\">\n<rect width=\"%g\" height=\"%g\" fill=\"#fff\"/>\n",
      kWidth, kHeight, kWidth, kHeight, kWidth, kHeight);
  for (double v = y.low; v <= y.high + y.tick / 2; v += y.tick)
    append_formatted(
        &svg, "<path d=\"M%g %.1fH%g\" stroke=\"#ddd\"/><text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
        kLeft, y(v), kWidth - kRight, kLeft - 8, y(v) + 4, v);
  for (double v = x.low; v <= x.high + x.tick / 2; v += x.tick)
    append_formatted(&svg, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%.10g</text>\n", x(v),
                     kHeight - kBottom + 20, v);
  append_formatted(&svg, "<path d=\"M%g %gV%gH%g\" fill=\"none\" stroke=\"#333\"/>\n", kLeft, kTop, kHeight - kBottom,
                   kWidth - kRight);
  append_formatted(&svg, "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">step</text>\n", (kLeft + kWidth - kRight) / 2,
                   kHeight - 12);
  append_formatted(
      &svg, "<text transform=\"translate(18 %g) rotate(-90)\" text-anchor=\"middle\">loss (nats per token)</text>\n",
      (kTop + kHeight - kBottom) / 2);
  svg += polyline(train, x, y, kTrain) + polyline(val, x, y, kVal);
  for (const Point& p : thinned(val, 100))
    append_formatted(&svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#e4572e\"/>\n", x(p.x), y(p.y));
  append_formatted(&svg, "<path d=\"M%g 22h28\" %s/><text x=\"%g\" y=\"26\">training</text>\n", kLeft, kTrain,
                   kLeft + 36);
  append_formatted(&svg, "<path d=\"M%g 22h28\" %s/><text x=\"%g\" y=\"26\">validation", kLeft + 120, kVal,
                   kLeft + 156);
  if (!val.empty()) append_formatted(&svg, " (last: %.4f)", val.back().y);
  return svg + "</text>\n</svg>\n";
}

}  // namespace rondo::examples
