#include "rondo/modules/pretrained/families.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rondo::nn {

extern const Family kGPT2Family, kLlamaFamily, kBertFamily, kViTFamily, kSegformerFamily, kVisionEncoderDecoderFamily;
static constexpr const Family* kFamilies[] = {&kGPT2Family, &kLlamaFamily,     &kBertFamily,
                                              &kViTFamily,  &kSegformerFamily, &kVisionEncoderDecoderFamily};

std::span<const Family* const> families() { return kFamilies; }

Published describe(ModuleBase& module, const std::string& model_type) {
  Published out;
  out.model_type = model_type;
  std::vector<const char*> classes;
  for (const Family* family : kFamilies) {
    if (family->describe(module, out)) return out;
    classes.insert(classes.end(), family->classes.begin(), family->classes.end());
  }
  throw Error(absl::StrCat("save_pretrained: ", module.type_name(),
                           " is none of the published models: ", absl::StrJoin(classes, ", ")));
}

}  // namespace rondo::nn
