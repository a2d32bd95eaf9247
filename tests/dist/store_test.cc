#include "rondo/dist/store.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/dist/store_protocol.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using std::chrono::steady_clock;
using test::error_of;
constexpr Milliseconds kPatient{30'000}, kShort{50};

class StoreTest : public testing::Test {
 protected:
  Store client() { return Store("127.0.0.1", server_.port(), kPatient); }
  Fd raw() { return connect_to("127.0.0.1", server_.port(), after(kPatient)); }
  // Sends bytes as they are; true if the server then closes the connection without a word.
  bool is_shown_the_door(std::string_view bytes) {
    const Fd socket = raw();
    send_all(socket, bytes, after(kPatient), "the server");
    char answer;
    return error_of<ConnectionError>([&] { receive_exactly(socket, &answer, 1, after(kPatient), "the server"); }) != "";
  }
  StoreServer server_{"127.0.0.1", 0};
};

TEST_F(StoreTest, KeepsWhatIsSet) {
  Store a = client(), b = client();
  EXPECT_EQ(a.get_if_there("x"), std::nullopt);
  a.set("x", std::string("1\0\n", 3));
  EXPECT_EQ(b.get("x", kPatient), std::string("1\0\n", 3));
  b.set("x", "");
  EXPECT_EQ(a.get_if_there("x"), "");
  a.remove("x");
  EXPECT_EQ(b.get_if_there("x"), std::nullopt);
  a.remove("x");
  a.post("y", "posted");
  EXPECT_EQ(b.get("y", kPatient), "posted");
  const std::string large(5 << 20, 'x');
  a.set("large", large);
  EXPECT_EQ(b.get("large", kPatient), large);
}

TEST_F(StoreTest, Adds) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([this] {
      Store store = client();
      for (int i = 0; i < 100; ++i) store.add("n", 1);
    });
  for (std::thread& thread : threads) thread.join();
  Store store = client();
  EXPECT_EQ(store.add("n", 0), 800);
  EXPECT_EQ(store.add("n", -1000), -200);
  EXPECT_EQ(store.get("n", kPatient), "-200");
  store.set("word", "seven");
  EXPECT_NE(error_of<ConnectionError>([&] { store.add("word", 1); }).find("word is not a number"), std::string::npos);
  EXPECT_EQ(store.add("n", 1), -199);  // a refusal does not end the connection
}

TEST_F(StoreTest, WaitsUntilAllKeysAreThere) {
  Store store = client();
  std::thread other([this] {
    Store setter = client();
    std::this_thread::sleep_for(kShort);
    setter.set("a", "1");
    setter.set("b", "2");
  });
  const std::vector<std::string> keys = {"a", "b"};
  store.wait(keys, kPatient);
  EXPECT_EQ(store.get_if_there("b"), "2");
  other.join();
  store.wait({}, kPatient);
}

TEST_F(StoreTest, TimesOutAndNamesWhatDidNotCome) {
  Store store = client();
  const auto began = steady_clock::now();
  EXPECT_NE(error_of<TimeoutError>([&] { store.get("nobody", kShort); }).find("nobody"), std::string::npos);
  EXPECT_GE(steady_clock::now() - began, kShort);
  store.set("here", "");
  const std::vector<std::string> keys = {"here", "there", "elsewhere"};
  const std::string error = error_of<TimeoutError>([&] { store.wait(keys, kShort); });
  EXPECT_NE(error.find("there, elsewhere within"), std::string::npos) << error;
  EXPECT_EQ(error.find("set here"), std::string::npos) << error;
  EXPECT_EQ(store.get_if_there("here"), "");  // and goes on
}

TEST_F(StoreTest, BarriersHoldAllAndNameTheMissing) {
  std::atomic<int> come = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      Store store = client();
      for (int round = 1; round <= 20; ++round) {
        ++come;
        store.barrier("all", r, 3, kPatient);
        EXPECT_GE(come, 3 * round);
      }
    });
  for (std::thread& thread : threads) thread.join();
  Store store = client();
  EXPECT_NE(
      error_of<TimeoutError>([&] { store.barrier("few", 1, 3, kShort); }).find("few: rank 0, rank 2 did not come"),
      std::string::npos);
}

TEST_F(StoreTest, WillsAreDoneHoweverAConnectionEnds) {
  Store store = client();
  {
    Store dies = client(), leaves = client();
    dies.set_will("dead", "it died");
    leaves.set_will("left", "it died");
    leaves.set_will("", "");
  }
  EXPECT_EQ(store.get("dead", kPatient), "it died");
  EXPECT_EQ(store.get_if_there("left"), std::nullopt);
}

TEST_F(StoreTest, GarbageIsShownTheDoorAndDisturbsNobody) {
  Store store = client();
  store.set("x", "still here");
  EXPECT_TRUE(is_shown_the_door("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  const std::string greeting(kGreeting);
  EXPECT_TRUE(is_shown_the_door(greeting + std::string("\xFF\xFF\xFF\xFF", 4)));        // 4 GiB to come
  EXPECT_TRUE(is_shown_the_door(greeting + std::string("\0\0\0\0", 4)));                // nothing
  EXPECT_TRUE(is_shown_the_door(greeting + std::string("\x01\0\0\0\x63", 5)));          // no such request
  EXPECT_TRUE(is_shown_the_door(greeting + std::string("\x05\0\0\0\0\xFF\0\0\0", 9)));  // a key longer than its message
  EXPECT_TRUE(is_shown_the_door(greeting + MessageWriter(static_cast<uint8_t>(StoreOp::kWait))
                                               .put(int64_t{0})
                                               .put(uint32_t{0xFFFFFFFF})
                                               .finish()));  // a count that cannot be
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    std::string noise = i % 2 == 0 ? greeting : "";
    for (size_t n = random() % 300; n > 0; --n) noise.push_back(static_cast<char>(random() % (i % 3 == 0 ? 8 : 256)));
    const Fd socket = raw();
    // The server may have closed it already.
    error_of<DistError>([&] { send_all(socket, noise, after(kPatient), "the server"); });
  }
  EXPECT_EQ(store.get("x", kPatient), "still here");
}

TEST_F(StoreTest, SilentAndSlowPeersAreNoTrouble) {
  Store store = client();
  const Fd silent = raw(), half = raw();
  send_all(half, std::string(kGreeting) + std::string("\x40\0", 2), after(kPatient), "the server");
  // A message in pieces is one message.
  const Fd slow = raw();
  const std::string request = std::string(kGreeting) +
                              MessageWriter(static_cast<uint8_t>(StoreOp::kSet)).text("slow").text("came").finish();
  for (const char byte : request) send_all(slow, std::string_view(&byte, 1), after(kPatient), "the server");
  EXPECT_EQ(store.get("slow", kPatient), "came");
}

TEST_F(StoreTest, RequestsBehindAWaitComeInOrder) {
  Store store = client();
  const Fd eager = raw();
  std::string requests(kGreeting);
  requests += MessageWriter(static_cast<uint8_t>(StoreOp::kGet)).put(int64_t{30'000}).text("late").finish();
  requests += MessageWriter(static_cast<uint8_t>(StoreOp::kSet)).text("after").text("1").finish();
  send_all(eager, requests, after(kPatient), "the server");
  std::this_thread::sleep_for(kShort);
  EXPECT_EQ(store.get_if_there("after"), std::nullopt);
  store.set("late", "now");
  EXPECT_EQ(store.get("after", kPatient), "1");
}

TEST_F(StoreTest, LimitsAreErrors) {
  Store store = client();
  EXPECT_NE(error_of([&] { store.set("x", std::string(kMaxMessage, 'x')); }), "");
  EXPECT_NE(error_of<ConnectionError>([&] { store.set("", "x"); }).find("a key has"), std::string::npos);
  EXPECT_NE(error_of<ConnectionError>([&] { store.set(std::string(kMaxKey + 1, 'k'), "x"); }), "");
  const std::string block(7 << 20, 'x');
  std::string error;
  for (int i = 0; i < 50 && error.empty(); ++i)
    error = error_of<ConnectionError>([&] { store.set(absl::StrCat(i), block); });
  EXPECT_NE(error.find("the store is full"), std::string::npos);
  store.remove("0");
  store.set("0", block);
}

TEST(StoreConnection, ErrorsOfAStoreThatIsNotThere) {
  int port = 0;
  {
    const StoreServer server("127.0.0.1", 0);
    port = server.port();
  }
  EXPECT_NE(error_of<TimeoutError>([&] { Store("127.0.0.1", port, kShort); }).find(absl::StrCat("127.0.0.1:", port)),
            std::string::npos);
  EXPECT_NE(error_of<ConnectionError>([] { Store("no.such.host.invalid", 1, kShort); }).find("no.such.host.invalid"),
            std::string::npos);
  EXPECT_NE(error_of<ConnectionError>([] { StoreServer("192.0.2.1", 0); }).find("192.0.2.1"), std::string::npos);
}

TEST(StoreConnection, AClientMayComeBeforeTheServer) {
  const int port = port_of(listen_on("127.0.0.1", 0));
  std::thread early([port] { Store("127.0.0.1", port, kPatient).set("x", "1"); });
  std::this_thread::sleep_for(kShort);
  const StoreServer server("127.0.0.1", port);
  early.join();
  EXPECT_EQ(Store("127.0.0.1", port, kPatient).get("x", kPatient), "1");
}

TEST(StoreConnection, AServerThatEndsIsAnErrorOfEveryLaterCall) {
  auto server = std::make_unique<StoreServer>("127.0.0.1", 0);
  Store store("127.0.0.1", server->port(), kPatient);
  store.set("x", "1");
  std::thread waiter([&] { EXPECT_NE(error_of<ConnectionError>([&] { store.get("never", kPatient); }), ""); });
  std::this_thread::sleep_for(kShort);
  server.reset();
  waiter.join();
  EXPECT_NE(error_of<ConnectionError>([&] { store.set("x", "2"); }), "");
}

// Somebody else's server: it must be told from a store before anything is believed.
TEST(StoreConnection, AnotherKindOfServerIsNoStore) {
  const Fd listener = listen_on("127.0.0.1", 0);
  std::thread other([&] {
    Fd peer;
    while (!peer) peer = Fd(::accept(listener.get(), nullptr, nullptr));
    send_all(peer, "HTTP/1.1 400 Bad Request\r\n\r\n", after(kPatient), "the client");
    char rest[64];
    while (::recv(peer.get(), rest, sizeof rest, 0) > 0) {
    }
  });
  EXPECT_NE(error_of<ConnectionError>([&] { Store("127.0.0.1", port_of(listener), kPatient); }).find("is not a store"),
            std::string::npos);
  other.join();
}

}  // namespace
}  // namespace rondo::dist
