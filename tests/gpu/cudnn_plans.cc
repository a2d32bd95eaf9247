// Writes runtime/cuda/cudnn_plans.md: the plans that cuDNN makes, without a device, for the convolutions and the
// attention of the models. cudnn_plans.sh runs it. Needs cuDNN itself.
//
//   cudnn_plans OUTPUT DRIVER      # DRIVER: what libcuda.so.1 is, in words
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/cuda/dnn_attention.h"
#include "rondo/runtime/cuda/dnn_plan.h"

namespace rondo::cuda {
namespace {

constexpr int kCapabilities[] = {80, 90, 100};

struct Layer {
  const char* models;
  int64_t batch, channels, outputs, kernel, stride, padding, size, groups = 1;
  bool bias = false;
};
// torchvision's ResNets at 224 x 224, batch 32; ViT-B/16 likewise; SegFormer-B0 at 512 x 512, batch 8.
constexpr Layer kLayers[] = {
    {"ResNet-18, 50", 32, 3, 64, 7, 2, 3, 224},
    {"ResNet-18, 50", 32, 64, 64, 3, 1, 1, 56},
    {"ResNet-18", 32, 64, 128, 3, 2, 1, 56},
    {"ResNet-18", 32, 64, 128, 1, 2, 0, 56},
    {"ResNet-18, 50", 32, 128, 128, 3, 1, 1, 28},
    {"ResNet-18", 32, 128, 256, 3, 2, 1, 28},
    {"ResNet-18", 32, 128, 256, 1, 2, 0, 28},
    {"ResNet-18, 50", 32, 256, 256, 3, 1, 1, 14},
    {"ResNet-18", 32, 256, 512, 3, 2, 1, 14},
    {"ResNet-18", 32, 256, 512, 1, 2, 0, 14},
    {"ResNet-18, 50", 32, 512, 512, 3, 1, 1, 7},
    {"ResNet-50", 32, 64, 64, 1, 1, 0, 56},
    {"ResNet-50", 32, 64, 256, 1, 1, 0, 56},
    {"ResNet-50", 32, 256, 64, 1, 1, 0, 56},
    {"ResNet-50", 32, 256, 128, 1, 1, 0, 56},
    {"ResNet-50", 32, 128, 128, 3, 2, 1, 56},
    {"ResNet-50", 32, 128, 512, 1, 1, 0, 28},
    {"ResNet-50", 32, 256, 512, 1, 2, 0, 56},
    {"ResNet-50", 32, 512, 128, 1, 1, 0, 28},
    {"ResNet-50", 32, 512, 256, 1, 1, 0, 28},
    {"ResNet-50", 32, 256, 256, 3, 2, 1, 28},
    {"ResNet-50", 32, 256, 1024, 1, 1, 0, 14},
    {"ResNet-50", 32, 512, 1024, 1, 2, 0, 28},
    {"ResNet-50", 32, 1024, 256, 1, 1, 0, 14},
    {"ResNet-50", 32, 1024, 512, 1, 1, 0, 14},
    {"ResNet-50", 32, 512, 512, 3, 2, 1, 14},
    {"ResNet-50", 32, 512, 2048, 1, 1, 0, 7},
    {"ResNet-50", 32, 1024, 2048, 1, 2, 0, 14},
    {"ResNet-50", 32, 2048, 512, 1, 1, 0, 7},
    {"ViT-B/16", 32, 3, 768, 16, 16, 0, 224, 1, true},
    {"SegFormer-B0", 8, 3, 32, 7, 4, 3, 512, 1, true},
    {"SegFormer-B0", 8, 32, 64, 3, 2, 1, 128, 1, true},
    {"SegFormer-B0", 8, 64, 160, 3, 2, 1, 64, 1, true},
    {"SegFormer-B0", 8, 160, 256, 3, 2, 1, 32, 1, true},
    {"SegFormer-B0", 8, 32, 32, 8, 8, 0, 128, 1, true},
    {"SegFormer-B0", 8, 64, 64, 4, 4, 0, 64, 1, true},
    {"SegFormer-B0", 8, 160, 160, 2, 2, 0, 32, 1, true},
    {"SegFormer-B0", 8, 128, 128, 3, 1, 1, 128, 128, true},
    {"SegFormer-B0", 8, 256, 256, 3, 1, 1, 64, 256, true},
    {"SegFormer-B0", 8, 640, 640, 3, 1, 1, 32, 640, true},
    {"SegFormer-B0", 8, 1024, 1024, 3, 1, 1, 16, 1024, true},
    {"SegFormer-B0", 8, 1024, 256, 1, 1, 0, 128},
    {"SegFormer-B0", 8, 256, 150, 1, 1, 0, 128, 1, true},
};

struct Heads {
  const char* model;
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  bool causal = false, padding = false;
};
constexpr Heads kHeads[] = {
    {"GPT-2 124M", 4, 12, 12, 1024, 1024, 64, true},
    {"Llama 3 8B", 1, 32, 8, 2048, 2048, 128, true},
    {"Llama, heads of 256", 1, 8, 8, 1024, 1024, 256, true},
    {"BERT base, padded", 8, 12, 12, 512, 512, 64, false, true},
    {"ViT-B/16", 32, 12, 12, 197, 197, 64},
    {"SegFormer-B0, stage 1", 8, 1, 1, 16384, 256, 32},
    {"SegFormer-B0, stage 2", 8, 2, 2, 4096, 256, 32},
    {"SegFormer-B0, stage 3", 8, 5, 5, 1024, 256, 32},
    {"SegFormer-B0, stage 4", 8, 8, 8, 256, 256, 32},
};

class Table {
 public:
  explicit Table(const Cudnn& library) : library_(library) {}

  // The plan of a graph for an architecture, as a cell. Its text must be read back as the same plan.
  std::string cell(const DnnGraph& graph, int capability) {
    const std::string properties = properties_of(capability);
    const MadePlan plan = make_plan(library_, graph, properties);
    Count& count = counts_[capability];
    if (plan.text.empty()) {
      ++count.none;
      return "none " + footnote(plan.why_not);
    }
    ++count.plans;
    if (read_plan(library_, plan.text, properties) != plan.workspace) {
      ++count.unread;
      return absl::StrCat(plan.engine, ", is not read back");
    }
    return absl::StrCat(plan.engine, ", ", bytes(plan.workspace), plan.notes.empty() ? "" : " ", marks(plan.notes));
  }
  std::string row(const DnnGraph& graph) {
    std::vector<std::string> cells;
    for (const int capability : kCapabilities) cells.push_back(cell(graph, capability));
    return absl::StrJoin(cells, " | ");
  }
  // "sm_80 129 plans, sm_90 128 and 1 none", since the last call.
  std::string counts() {
    std::vector<std::string> words;
    for (auto& [capability, count] : counts_)
      words.push_back(absl::StrCat("sm_", capability, " ", count.plans, " of ", count.plans + count.none,
                                   count.unread == 0 ? "" : absl::StrCat(" (", count.unread, " not read back)")));
    counts_.clear();
    return absl::StrJoin(words, ", ");
  }
  const std::vector<std::string>& footnotes() const { return footnotes_; }

 private:
  struct Count {
    int plans = 0, none = 0, unread = 0;
  };
  static std::string bytes(int64_t n) {
    if (n < 1024) return absl::StrCat(n, " B");
    return n < (1 << 20) ? absl::StrCat((n + 1023) >> 10, " KiB") : absl::StrCat((n + (1 << 20) - 1) >> 20, " MiB");
  }
  static std::string marks(const std::string& notes) {
    std::string marks;
    const std::pair<const char*, char> kMarks[] = {{"tensor cores", 't'}, {"TF32", 'r'},     {"FFT", 'f'},
                                                   {"Winograd", 'w'},     {"compiled", 'c'}, {"CUDA graphs", 'g'},
                                                   {"cuBLASLt", 'l'}};
    for (const auto& [word, mark] : kMarks)
      if (notes.find(word) != notes.npos) marks += mark;
    return marks;
  }
  std::string footnote(const std::string& why) {
    for (size_t i = 0; i < footnotes_.size(); ++i)
      if (footnotes_[i] == why) return absl::StrCat("(", i + 1, ")");
    footnotes_.push_back(why);
    return absl::StrCat("(", footnotes_.size(), ")");
  }

  const Cudnn& library_;
  std::map<int, Count> counts_;
  std::vector<std::string> footnotes_;
};

enum Direction { kForward, kFused, kInput, kWeight, kDirections };
constexpr const char* kNames[] = {"y", "y, bias, relu", "dx", "dw"};

DnnConvolution convolution(const Layer& l, Direction direction, DType dtype, bool last) {
  const int64_t out = (l.size + 2 * l.padding - l.kernel) / l.stride + 1;
  using Computes = DnnConvolution::Computes;
  return {.computes = direction == kInput    ? Computes::kInput
                      : direction == kWeight ? Computes::kWeight
                                             : Computes::kOutput,
          .dtype = dtype,
          .bias = direction == kFused || (direction == kForward && l.bias),
          .relu = direction == kFused,
          .input_last = last,
          .weight_last = last,
          .output_last = last,
          .input = {l.batch, l.channels, l.size, l.size},
          .weight = {l.outputs, l.channels / l.groups, l.kernel, l.kernel},
          .output = {l.batch, l.outputs, out, out},
          .stride = {l.stride, l.stride},
          .before = {l.padding, l.padding},
          .after = {l.padding, l.padding}};
}

DnnAttention attention(const Heads& h, DType dtype) {
  const auto strides = [&](int64_t heads, int64_t rows) {
    return HeadsStrides{heads * rows * h.head_dim, h.head_dim, heads * h.head_dim};
  };
  const HeadsStrides queries = strides(h.heads, h.queries), keys = strides(h.kv_heads, h.keys);
  DnnAttention a{.call = {.dtype = dtype,
                          .batch = h.batch,
                          .heads = h.heads,
                          .kv_heads = h.kv_heads,
                          .queries = h.queries,
                          .keys = h.keys,
                          .head_dim = h.head_dim,
                          .causal = h.causal,
                          .scale = 0.125,
                          .q = queries,
                          .k = keys,
                          .v = keys},
                 .bias = h.padding,
                 .bias_sizes = {h.batch, 1, 1, h.keys},
                 .out = queries,
                 .grad = queries,
                 .grad_q = queries,
                 .grad_k = keys,
                 .grad_v = keys};
  if (!h.padding) a.bias_sizes[0] = a.bias_sizes[3] = 1;
  return a;
}

void write(const Cudnn& library, const char* driver, std::ostream& out) {
  Table table(library);
  out << "# Plans of cuDNN for the models\n\n"
      << "Made by `tests/gpu/cudnn_plans.sh` with cuDNN " << version_of(library) << ", " << driver << R"(. There was no
device, and nothing was run. The plans are made from the descriptions of an A100 (sm_80), an H100 (sm_90) and a B200
(sm_100) in `dnn_plan.cc`. cuDNN has read back the text of each plan, and gave a plan with the same workspace.
Note [Engines] in `dnn_plan.h` says how engines are chosen.

A cell has the engine's number, its workspace, and notes: t tensor cores; r operands rounded to TF32; w Winograd; f FFT;
c its code is compiled when the plan is made; g native CUDA graphs; l cuBLASLt. In the column "computes", y is the
convolution's result, dx and dw are the gradients of its input and of its weight.

## Convolutions, bf16, channels last

)"
      << "| model | x | weight | computes | sm_80 | sm_90 | sm_100 |\n|---|---|---|---|---|---|---|\n";
  for (const Layer& l : kLayers)
    for (int d = 0; d < kDirections; ++d) {
      const DnnConvolution c = convolution(l, static_cast<Direction>(d), kBF16, true);
      out << "| " << l.models << " | " << absl::StrJoin(c.input, " x ") << " | " << absl::StrJoin(c.weight, " x ")
          << (l.stride > 1 ? absl::StrCat(", stride ", l.stride) : "") << " | " << kNames[d]
          << (d == kForward && l.bias ? ", bias" : "") << " | " << table.row(convolution_graph(c)) << " |\n";
    }
  out << "\nPlans: " << table.counts() << ".\n\n## The same convolutions in other types and layouts\n\n"
      << "| type | layout | graphs with a plan |\n|---|---|---|\n";
  for (const DType dtype : {kBF16, kF16, kF32})
    for (const bool last : {true, false}) {
      if (dtype == kBF16 && last) continue;
      for (const Layer& l : kLayers)
        for (int d = 0; d < kDirections; ++d)
          static_cast<void>(table.row(convolution_graph(convolution(l, static_cast<Direction>(d), dtype, last))));
      out << "| " << name_of(dtype) << " | " << (last ? "channels last" : "(B, C, H, W)") << " | " << table.counts()
          << " |\n";
    }
  out << "\n## Attention, bf16\n\n"
      << "| model | B, H, Tq / Tk, D | direction | sm_80 | sm_90 | sm_100 |\n|---|---|---|---|---|---|\n";
  for (const Heads& h : kHeads)
    for (const bool backward : {false, true}) {
      const DnnAttention a = attention(h, kBF16);
      out << "| " << h.model << " | " << h.batch << ", " << h.heads
          << (h.heads == h.kv_heads ? "" : absl::StrCat(" / ", h.kv_heads)) << ", " << h.queries << " / " << h.keys
          << ", " << h.head_dim << (h.causal ? ", causal" : "") << " | " << (backward ? "backward" : "forward") << " | "
          << table.row(backward ? attention_grad_graph(a) : attention_graph(a)) << " |\n";
      out.flush();
    }
  out << "\nPlans: " << table.counts() << ".\n";
  if (!table.footnotes().empty()) out << "\n## Why there is none\n\n";
  for (size_t i = 0; i < table.footnotes().size(); ++i) out << i + 1 << ". " << table.footnotes()[i] << "\n";
}

}  // namespace
}  // namespace rondo::cuda

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "cudnn_plans OUTPUT DRIVER\n");
    return 2;
  }
  std::string why_not;
  const rondo::cuda::Cudnn* const library = rondo::cuda::find_cudnn(&why_not);
  if (library == nullptr) {
    std::fprintf(stderr, "cudnn_plans: %s\n", why_not.c_str());
    return 1;
  }
  std::ofstream out(argv[1]);
  rondo::cuda::write(*library, argv[2], out);
  return out.good() ? 0 : 1;
}
