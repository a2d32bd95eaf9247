// What a process has made: where it is found, and what threads do that want the same new object.
#include "rondo/runtime/io/object_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rondo/tests/compile/temp_folder.h"

namespace rondo::io {
namespace {

using From = ObjectStore::From;

const HostKey kHost{{{"build", "7"}}};

class ObjectStoreTest : public testing::Test {
 protected:
  DiskCacheOptions disk() const { return {.folder = temp_ / "cache"}; }
  // What find_or_make() does for a text whose object is the text in brackets. "bad" is damaged.
  From get(ObjectStore& store, const std::string& text) {
    return store.find_or_make(text, read_, [&] { return ++made_, "[" + text + "]"; });
  }
  static absl::Status check(const std::string& object) {
    return object == "bad" ? absl::InvalidArgumentError("it is bad") : absl::OkStatus();
  }

  test::TempFolder temp_;
  std::string found_;
  std::atomic<int> made_ = 0;
  const std::function<absl::Status(const std::string&)> read_ = [this](const std::string& object) {
    if (absl::Status status = check(object); !status.ok()) return status;
    found_ = object;
    return absl::OkStatus();
  };
};

TEST_F(ObjectStoreTest, MemoryArtifactsAndDisk) {
  ObjectStore first(disk(), kHost);
  EXPECT_EQ(first.find("a", read_), From::kNowhere);
  EXPECT_EQ(get(first, "b"), From::kMade);
  EXPECT_EQ(get(first, "a"), From::kMade);
  EXPECT_EQ(found_, "") << "who makes it has it";
  EXPECT_EQ(get(first, "a"), From::kMemory);
  EXPECT_EQ(found_, "[a]");
  const KernelFile file = first.contents();
  EXPECT_EQ(file.host, kHost.text());
  ASSERT_EQ(file.kernels.size(), 2u);
  EXPECT_EQ(file.kernels[0].kernel, "a");
  EXPECT_EQ(file.kernels[1].object, "[b]");
  EXPECT_EQ(first.forget(), 2u);
  EXPECT_EQ(get(first, "b"), From::kDisk);
  EXPECT_EQ(get(first, "b"), From::kMemory);

  ObjectStore second({}, kHost);
  EXPECT_TRUE(second.take(file, &check).ok());
  EXPECT_TRUE(second.has_artifacts());
  EXPECT_EQ(second.find("a", read_), From::kArtifact);
  EXPECT_EQ(second.find("a", read_), From::kMemory) << "as one of ours";
  second.add("a", "another");
  EXPECT_EQ(second.find("a", read_), From::kMemory);
  EXPECT_EQ(found_, "another");
  EXPECT_TRUE(second.take(file, &check).ok());
  EXPECT_EQ(second.find("a", read_), From::kMemory) << "what is here stays";
  EXPECT_EQ(second.forget(), 2u);
  EXPECT_FALSE(second.has_artifacts());
  EXPECT_EQ(made_, 2);
}

TEST_F(ObjectStoreTest, WhatIsDamagedIsMadeAgain) {
  ObjectStore store(disk(), kHost);
  store.add("a", "bad");
  EXPECT_EQ(get(store, "a"), From::kMade);
  EXPECT_EQ(get(store, "a"), From::kMemory);
  store.add("a", "bad");
  store.forget();
  EXPECT_EQ(store.find("a", read_), From::kNowhere) << "on disk";
  EXPECT_EQ(ObjectStore(disk(), kHost).find("a", read_), From::kNowhere) << "removed";
  // One damaged object, and none is taken.
  EXPECT_FALSE(store.take({kHost.text(), {{"b", "[b]"}, {"c", "bad"}}}, &check).ok());
  EXPECT_EQ(store.find("b", read_), From::kNowhere);
}

TEST_F(ObjectStoreTest, OneThreadMakesWhatSeveralWant) {
  ObjectStore store({}, kHost);
  std::vector<std::thread> threads;
  std::atomic<int> made = 0, found = 0;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      std::string object;
      const auto read = [&](const std::string& stored) {
        object = stored;
        return absl::OkStatus();
      };
      const From from = store.find_or_make("a", read, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ++made;
        return object = "[a]";
      });
      found += object == "[a]" && (from == From::kMade || from == From::kMemory);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(found, 8);
}

// What fails, or is not kept, is made again by the next one, who may have waited.
TEST_F(ObjectStoreTest, AFailureIsEverybodysOwn) {
  ObjectStore store({}, kHost);
  std::vector<std::thread> threads;
  std::atomic<int> tries = 0, errors = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      try {
        store.find_or_make("a", read_, [&]() -> std::string {
          ++tries;
          throw std::runtime_error("no compiler");
        });
      } catch (const std::runtime_error&) {
        ++errors;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tries, 4);
  EXPECT_EQ(errors, 4);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(store.find_or_make("a", read_, [] { return std::optional<std::string>(); }), From::kMade);
  EXPECT_EQ(store.contents().kernels.size(), 0u);
  EXPECT_EQ(get(store, "a"), From::kMade);
}

}  // namespace
}  // namespace rondo::io
