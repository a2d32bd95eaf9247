// The fields of a config.json that Rondo does not read because they change nothing: one table of fields, with the
// values and the families for which this is so. This header is not installed; users include auto_model.h.
#pragma once

#include <string_view>

namespace rondo::nn {

enum class FieldEffect {
  kNone,         // harmless at this value
  kOfItsFields,  // an object: each of its fields has its own effect, under "name.field"
  kChanges,      // the table knows the field; with this value it changes what the model computes, or may
  kUnknown,      // the table does not have the field for this family
};

// Finds the effect of a field. `model_type` and `field` as in the file; fields of an object are "rope_scaling.factor".
// `json`: the value's text. null is harmless for every field of the table, because it means the same as an absent
// field.
FieldEffect effect_of(std::string_view model_type, std::string_view field, std::string_view json);

}  // namespace rondo::nn
