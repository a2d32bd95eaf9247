// Names of the models of bert_tasks.h in published files and in transformers. This header is not
// installed.
#pragma once

#include <string>

#include "rondo/modules/transformers/bert_tasks.h"

namespace rondo::nn {

// Returns the config of a model of bert_tasks.h; null for any other module.
const BertConfig* bert_config(const ModuleBase& model);
// Returns the published name of a module or a tensor: "head.dense.weight" -> "cls.predictions.transform.dense.weight".
std::string published_bert_name(const BertConfig& config, std::string name);

}  // namespace rondo::nn
