// Folders that are listed, and texts that are formatted, when memory runs short.
#include <gtest/gtest.h>

#include <filesystem>

#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/trainer/event_writer.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/disk_cache.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/memory/digest.h"
#include "rondo/tests/memory/failing_memory.h"
#include "rondo/tests/modules/pretrained_cases.h"

namespace rondo {
namespace {

using test::digest;
using test::expect_typed_errors;
using test::TempFolder;
using test::Work;

// ---- Folders

TEST(MemoryOfFolders, RunsShortInAList) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    for (const char* name : {"a file whose name is long", "b", ".hidden", ".tmp-of a dead process.4000000.1"})
      test::write_bytes(*folder / name, "x");
    return [folder, none = *folder / "none"] {
      io::sweep_temporaries(folder->path());
      const std::vector<std::string> names = io::list_folder(folder->path());
      return digest(names, io::list_folder(none).size());
    };
  });
}

TEST(MemoryOfFolders, RunsShortInACacheOfKernels) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    const io::HostKey host{{{"build", "7"}, {"cpu", "Vendor avx2"}}}, other{{{"build", "8"}, {"cpu", "Vendor avx2"}}};
    const std::string object(3000, 'x');
    return [=, path = *folder / "cache"] {
      {
        const test::FailingMemory::Pause pause;
        std::filesystem::remove_all(path);
      }
      return within_memory("the cache", [&] {
        const io::DiskCacheOptions options{.folder = path, .max_bytes = 8000};
        io::DiskCache cache(options, host), theirs(options, other);
        theirs.store("a kernel of another host", object);
        for (const char* kernel : {"kernel a", "kernel b", "kernel c", "kernel d"}) cache.store(kernel, object);
        const std::string differs = cache.nearest_host("a kernel of another host").components;
        return digest(cache.some_kernels(10).size(), cache.find("kernel d").value_or(""), differs);
      });
    };
  });
}

TEST(MemoryOfFolders, RunsShortInAModelOfSeveralFiles) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    const auto model = nn::load_case("gpt2", nn::recorded_folder("gpt2"), {}, {}).model;
    model->save_pretrained(*folder / "model");
    return [folder, model, path = *folder / "model"] {
      model->save_pretrained(path, {.max_shard_bytes = 9000});
      const test::FailingMemory::Pause pause;
      return digest(io::list_folder(path));
    };
  });
}

TEST(MemoryOfFolders, RunsShortInEventFiles) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    return [folder] {
      optim::EventWriter writer(folder->path(), 0);
      writer.write(1, {{"train/loss", 2.5}, {"train/learning_rate", 1e-3}});
      const test::FailingMemory::Pause pause;
      return digest(io::list_folder(folder->path()).size());
    };
  });
}

// ---- Texts

TEST(MemoryOfTexts, RunsShortWhereverTheyGrow) {
  expect_typed_errors([]() -> Work {
    const std::string word(50, 'w');
    return [word] {
      return within_memory("a text", [&] {
        std::string out = formatted("%d of %s", 7, word);
        for (int i = 0; i < 20; ++i) append_formatted(&out, ", %5.1f and %s", i * 0.37, word);
        append_formatted(&out, "%s%s%s%s%s%s", word, word, word, word, word, word);
        return digest(out);
      });
    };
  });
}
TEST(Formatted, IsAbslsText) {
  for (const size_t length : {size_t{0}, size_t{1}, size_t{254}, size_t{255}, size_t{256}, size_t{257}, size_t{5000}}) {
    const std::string text(length, 't');
    EXPECT_EQ(formatted("%s", text), text);
    std::string out = "before ";
    append_formatted(&out, "%s|%g|%x", text, 0.1, 255);
    EXPECT_EQ(out, "before " + absl::StrFormat("%s|%g|%x", text, 0.1, 255));
  }
}

TEST(MemoryOfTexts, RunsShortInReports) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  expect_typed_errors([]() -> Work {
    nn::GPT2 model({.vocab_size = 23, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16}, 3);
    model.eval();
    const Tensor ids = Tensor::from<int64_t>({1, 2, 3, 4}, {1, 4});
    const auto explanation = std::make_shared<compile::Explanation>(compile::explain(model, ids));
    const auto regions = std::make_shared<compile::Regions>(compile::compile_regions(model));
    static_cast<void>(model(ids));
    const memory::Report report{.parameters = 5'000'000, .workspace = 7, .cause = "matmul (train.cc:41)"};
    return [=] {
      // Empty or not, as they have times in them.
      return digest(to_text(*explanation).empty(), to_html(*explanation).empty(), regions->summary().empty(),
                    memory::to_string(report));
    };
  });
}

}  // namespace
}  // namespace rondo
