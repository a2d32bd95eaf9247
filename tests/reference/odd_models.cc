// Runs Rondo on the folders that odd_models.py makes. For each case folder on the command line:
//
//   CASE/model/              a published folder          CASE/task    base, causal, sequence, token, masked or image
//   CASE/inputs.safetensors  ids, mask, segments, images, targets, prompt
//   CASE/peft/               an adapter of PEFT, or none  CASE/lora   lines for add_lora, or none: "target q_proj"
//
// writes CASE/out/: values.safetensors, saved/ (save_pretrained), adapter/ (save_adapter of add_lora's), peft/ (PEFT's
// adapter saved again), merged/, and `stages`, a line for each stage: "logits ok" or "logits refused MESSAGE".
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "rondo/modules/generation/generation.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace rondo {
namespace {

namespace fs = std::filesystem;

struct Model {
  std::shared_ptr<nn::PretrainedModel> model;
  std::function<Tensor()> logits, loss;
};

Model load(const std::string& folder, const std::string& task, const io::TensorMap& inputs) {
  const nn::PretrainedOptions train = {.train_adapter = true};
  const auto in = [inputs](const char* name) {
    const auto at = inputs.find(name);
    return at == inputs.end() ? Tensor() : at->second;
  };
  if (task == "causal") {
    const auto m = std::make_shared<nn::AutoModelForCausalLM>(nn::AutoModelForCausalLM::from_pretrained(folder, train));
    return {m, [=] { return (*m)(in("ids")); }, [=] { return m->loss(in("ids"), in("targets")); }};
  }
  if (task == "base") {
    const auto m = std::make_shared<nn::AutoModel>(nn::AutoModel::from_pretrained(folder, train));
    return {m, [=] { return (*m)(in("ids"), in("mask"), in("segments")); }, nullptr};
  }
  if (task == "image") {
    const auto m = std::make_shared<nn::AutoModelForImageClassification>(
        nn::AutoModelForImageClassification::from_pretrained(folder, train));
    return {m, [=] { return (*m)(in("images")); }, [=] { return m->loss(in("images"), in("targets")); }};
  }
  const auto classifier = [&]<class M>() -> Model {
    const auto m = std::make_shared<M>(M::from_pretrained(folder, train));
    return {m, [=] { return (*m)(in("ids"), in("mask"), in("segments")); },
            [=] { return m->loss(in("ids"), in("mask"), in("segments"), in("targets")); }};
  };
  return task == "token"    ? classifier.operator()<nn::AutoModelForTokenClassification>()
         : task == "masked" ? classifier.operator()<nn::AutoModelForMaskedLM>()
                            : classifier.operator()<nn::AutoModelForSequenceClassification>();
}

std::vector<double> ten_losses(const Model& m) {
  optim::AdamW optimizer((*m.model)->parameters(),
                         {.lr = 1e-3, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1});
  std::vector<double> losses;
  for (int step = 0; step < 10; ++step) {
    const Tensor loss = m.loss();
    losses.push_back(loss.item());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  return losses;
}

nn::LoraOptions lora_options(const std::string& path) {
  nn::LoraOptions options = {.rank = 2, .alpha = 3};
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key, value;
    words >> key >> value;
    if (key == "target") options.targets.push_back(value);
    else if (key == "pattern") options.target_pattern = value;
    else if (key == "save") options.modules_to_save.push_back(value);
    else if (key == "rslora") options.rslora = true;
  }
  return options;
}

// Every parameter of the active adapter gets other values than its first.
void stir(nn::ModuleBase& model) {
  const NoGrad off;
  Generator generator(5);
  for (Tensor& p : model.parameters())
    if (p.requires_grad()) p.add_(Tensor::randn(p.sizes(), p.device(), &generator) * 0.1);
}

class Case {
 public:
  explicit Case(const std::string& folder) : folder_(folder), out_(folder + "/out") {
    fs::create_directories(out_);
    std::ifstream(folder + "/task") >> task_;
    inputs_ = io::load_safetensors(folder + "/inputs.safetensors").tensors;
  }

  void run() {
    stage("logits", [&] { values_["logits"] = logits(fresh()); });
    if (task_ != "base")
      stage("losses", [&] {
        const std::vector<double> losses = ten_losses(fresh());
        values_["losses"] = Tensor::from(losses, {10});
      });
    stage("saved", [&] { fresh().model->save_pretrained(out_ + "/saved"); });
    if (task_ == "causal") stage("generated", [&] { generate(); });
    if (fs::exists(folder_ + "/peft"))
      stage("peft", [&] {
        const Model m = fresh();
        nn::load_adapter(**m.model, folder_ + "/peft");
        (*m.model)->eval();
        values_["peft"] = logits(m);
        nn::save_adapter(**m.model, out_ + "/peft");
        if (m.loss) values_["peft_losses"] = Tensor::from(ten_losses(m), {10});
      });
    if (fs::exists(folder_ + "/lora")) {
      stage("lora", [&] { own_adapter(out_ + "/adapter", "lora", /*merge=*/false); });
      stage("merged", [&] { own_adapter(out_ + "/merged", "merged", /*merge=*/true); });
    }
    io::save_safetensors(out_ + "/values.safetensors", values_);
    std::ofstream(out_ + "/stages") << stages_;
  }

 private:
  Model fresh() const { return load(folder_ + "/model", task_, inputs_); }
  static Tensor logits(const Model& m) {
    const NoGrad off;
    return m.logits().to(kF32).contiguous();
  }
  void generate() {
    const Model m = fresh();
    auto* causal = m.model->as<nn::CausalLM>();
    const std::vector<int64_t> prompt = inputs_.at("prompt").to_vector<int64_t>();
    const std::vector<int64_t> made = nn::generate(*causal, prompt, {.max_new_tokens = 12, .temperature = 0}).tokens;
    values_["generated"] = Tensor::from(made, {static_cast<int64_t>(made.size())});
  }
  void own_adapter(const std::string& folder, const char* name, bool merge) {
    const Model m = fresh();
    manual_seed(7);
    nn::add_lora(**m.model, lora_options(folder_ + "/lora"));
    stir(**m.model);
    (*m.model)->eval();
    if (merge) nn::merge_and_unload(**m.model);
    values_[name] = logits(m);
    if (merge) m.model->save_pretrained(folder);
    else nn::save_adapter(**m.model, folder);
  }
  void stage(const char* name, const std::function<void()>& run) {
    std::string result = "ok";
    try {
      run();
    } catch (const InternalError& error) {
      result = std::string("internal ") + error.what();
    } catch (const Error& error) {
      result = std::string("refused ") + error.what();
    }
    for (char& c : result)
      if (c == '\n') c = ' ';
    stages_ += std::string(name) + " " + result + "\n";
  }

  const std::string folder_, out_;
  std::string task_, stages_;
  io::TensorMap inputs_, values_;
};

}  // namespace
}  // namespace rondo

int main(int argc, char** argv) try {
  for (int i = 1; i < argc; ++i) rondo::Case(argv[i]).run();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "odd_models: %s\n", error.what());
  return 1;
}
