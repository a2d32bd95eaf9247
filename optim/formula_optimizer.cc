#include "rondo/optim/formula_optimizer.h"

#include "absl/strings/str_cat.h"

namespace rondo::optim {

void check_betas(const char* optimizer, std::span<const double> betas) {
  for (double beta : betas)
    if (!(beta >= 0 && beta < 1)) throw Error(absl::StrCat(optimizer, ": betas must be in [0, 1), got ", beta));
}

void check_not_negative(const char* optimizer, std::initializer_list<std::pair<const char*, double>> options) {
  for (const auto& [name, value] : options)
    if (!(value >= 0)) throw Error(absl::StrCat(optimizer, ": ", name, " must not be negative, got ", value));
}

}  // namespace rondo::optim
