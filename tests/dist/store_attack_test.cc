// The launcher's store under clients that ask for everything: it stays under 256 MiB, and serves the others.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/dist/transport/store.h"
#include "rondo/dist/transport/store_protocol.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/dist/launched.h"
#include "rondo/tests/dist/raw_client.h"

namespace rondo::dist {
namespace {

constexpr Milliseconds kPatient{60'000};

class StoreAttack : public testing::Test {
 protected:
  void SetUp() override { launch(); }
  // `prepare` runs in the launcher's process.
  void launch(const std::function<void()>& prepare = [] {}) {
    std::filesystem::remove(folder_ / "port");
    launched_ = std::make_unique<test::Launched>(
        std::vector<std::string>{"--nproc-per-node", "1", "sh", "-c",
                                 absl::StrCat("echo $RONDO_STORE_TOKEN > ", folder_ / "token",
                                              "; echo ${RONDO_STORE#*:} > ", folder_ / "port", "; exec sleep 1000")},
        folder_ / "out", prepare);
    port_ = test::pid_in(folder_ / "port");
    ASSERT_GT(port_, 0);
    token_ = std::string(absl::StripAsciiWhitespace(test::text_of(folder_ / "token")));
  }
  Store client() { return Store("127.0.0.1", port_, kPatient, token_); }
  Fd member() {
    Fd socket = connect_to("127.0.0.1", port_, after(kPatient));
    test::greet(socket, token_);
    return socket;
  }
  // Sends what the server takes within a moment.
  static void push(const Fd& socket, std::string_view bytes) {
    try {
      send_all(socket, bytes, after(Milliseconds(20)), "the store");
    } catch (const DistError&) {
    }
  }
  int64_t launcher_memory(const char* what) const {
    for (const std::string& line : std::vector<std::string>(
             absl::StrSplit(test::text_of(absl::StrCat("/proc/", launched_->pid(), "/status")), '\n'))) {
      int64_t kib = 0;
      const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
      if (words.size() == 3 && words[0] == what && absl::SimpleAtoi(words[1], &kib)) return kib << 10;
    }
    return -1;
  }

  const test::TempFolder folder_;
  std::unique_ptr<test::Launched> launched_;
  int port_ = 0;
  std::string token_;
};

TEST_F(StoreAttack, MemoryStaysUnderItsLimit) {
  Store store = client();
  const std::string block(kMaxMessage - 100, 'x');
  store.set("block", block);
  std::vector<Fd> sockets;
  for (int i = 0; i < 64; ++i) {
    // Half a message of the greatest size.
    sockets.push_back(member());
    const std::string whole = MessageWriter(static_cast<uint8_t>(StoreOp::kSet)).text("x").text(block).finish();
    push(sockets.back(), std::string_view(whole).substr(0, whole.size() - 1));
    // A last message, which stays as long as its connection.
    sockets.push_back(member());
    push(sockets.back(), MessageWriter(static_cast<uint8_t>(StoreOp::kLastMessage)).text("y").text(block).finish());
    // Replies that nobody reads.
    sockets.push_back(member());
    for (int n = 0; n < 4; ++n)
      push(sockets.back(),
           MessageWriter(static_cast<uint8_t>(StoreOp::kGet)).put(int64_t{1000}).text("block").finish());
    // A wait for thousands of keys.
    sockets.push_back(member());
    MessageWriter wait(static_cast<uint8_t>(StoreOp::kWait));
    wait.put(int64_t{1'000'000}).put(uint32_t{8000});
    for (int k = 0; k < 8000; ++k) wait.text(absl::StrCat("key/", i, "/", k, std::string(900, 'k')));
    push(sockets.back(), wait.finish());
  }
  EXPECT_EQ(store.add("alive", 1), 1);
  EXPECT_EQ(client().add("alive", 1), 2);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(launcher_memory("VmHWM:"), int64_t{256} << 20);
#endif
  EXPECT_GT(launcher_memory("VmHWM:"), 0);
}

// Silent connections take half of the launcher's descriptors at most, and the oldest of them makes room after a second.
// So somebody who knows the token comes in after 16 seconds, in the order of coming; the time to greet alone, five
// seconds for each set of strangers, would make it 40 and more.
TEST_F(StoreAttack, SilentStrangersMakeRoom) {
  constexpr rlim_t kFew = 64;
  launch([] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = kFew;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  });
  std::vector<Fd> strangers;
  for (int i = 0; i < 500; ++i) strangers.push_back(connect_to("127.0.0.1", port_, after(kPatient)));
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(client().add("alive", 1), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
  const auto descriptors = [&] {
    return std::distance(std::filesystem::directory_iterator(absl::StrCat("/proc/", launched_->pid(), "/fd")), {});
  };
  EXPECT_LE(descriptors(), kFew - 16);  // room for pipes to new ranks
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(StoreAttack, NoMemoryIsTheTroubleOfTheClientThatAsked) {
  Store store = client();
  const int64_t now = launcher_memory("VmSize:");
  const rlimit limit = {static_cast<rlim_t>(now + (24 << 20)), RLIM_INFINITY};
  ASSERT_EQ(::prlimit(launched_->pid(), RLIMIT_AS, &limit, nullptr), 0);
  const std::string block(6 << 20, 'x');
  bool refused = false;
  for (int i = 0; i < 20 && !refused; ++i) try {
      client().set(absl::StrCat("block/", i), block);
    } catch (const ConnectionError&) {
      refused = true;
    }
  EXPECT_TRUE(refused);
  EXPECT_EQ(store.add("alive", 1), 1);
  EXPECT_EQ(client().add("alive", 1), 2);
}
#endif

}  // namespace
}  // namespace rondo::dist
