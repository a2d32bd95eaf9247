#include "rondo/dist/transport/store.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/dist/transport/store_protocol.h"
#include "rondo/dist/transport/store_table.h"
#include "rondo/tests/dist/raw_client.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using std::chrono::steady_clock;
using test::error_of;
constexpr Milliseconds kPatient{30'000}, kShort{50};

std::string request(StoreOp op, std::string_view key, std::string_view value) {
  return MessageWriter(static_cast<uint8_t>(op)).text(key).text(value).finish();
}
std::string set_request(std::string_view key, std::string_view value) { return request(StoreOp::kSet, key, value); }

class StoreTest : public testing::Test {
 protected:
  Store client() { return Store("127.0.0.1", server_.port(), kPatient); }
  Fd raw() { return connect_to("127.0.0.1", server_.port(), after(kPatient)); }
  Fd greeted() {
    Fd socket = raw();
    test::greet(socket);
    return socket;
  }
  // Sends bytes as they are; true if the server then closes the connection.
  bool is_shown_the_door(std::string_view bytes) { return is_shown_the_door(raw(), bytes); }
  static bool is_shown_the_door(const Fd& socket, std::string_view bytes) {
    send_all(socket, bytes, after(kPatient), "the server");
    return is_closed(socket);
  }
  static bool is_closed(const Fd& socket) {
    char answer;
    return error_of<ConnectionError>([&] {
             for (;;) receive_exactly(socket, &answer, 1, after(kPatient), "the server");
           }) != "";
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
    dies.set_last_message("dead", "it died");
    leaves.set_last_message("left", "it died");
    leaves.set_last_message("", "");
  }
  EXPECT_EQ(store.get("dead", kPatient), "it died");
  EXPECT_EQ(store.get_if_there("left"), std::nullopt);
}

TEST_F(StoreTest, GarbageIsShownTheDoorAndDisturbsNobody) {
  Store store = client();
  store.set("x", "still here");
  EXPECT_TRUE(is_shown_the_door("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_TRUE(is_shown_the_door(std::string(kGreeting) + std::string("\xFF\xFF\0\0", 4)));  // too long for a token
  EXPECT_TRUE(is_shown_the_door(std::string(kGreeting) + set_request("x", "no token yet")));
  EXPECT_TRUE(is_shown_the_door(greeted(), std::string("\xFF\xFF\xFF\xFF", 4)));  // 4 GiB to come
  EXPECT_TRUE(is_shown_the_door(greeted(), std::string("\0\0\0\0", 4)));          // nothing
  EXPECT_TRUE(is_shown_the_door(greeted(), std::string("\x01\0\0\0\x63", 5)));    // no such request
  EXPECT_TRUE(
      is_shown_the_door(greeted(), std::string("\x05\0\0\0\x06\xFF\0\0\0", 9)));  // a key longer than its message
  EXPECT_TRUE(is_shown_the_door(greeted(), MessageWriter(static_cast<uint8_t>(StoreOp::kWait))
                                               .put(int64_t{0})
                                               .put(uint32_t{0xFFFFFFFF})
                                               .finish()));  // a count that cannot be
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    std::string noise;
    for (size_t n = random() % 300; n > 0; --n) noise.push_back(static_cast<char>(random() % (i % 3 == 0 ? 8 : 256)));
    const Fd socket = i % 2 == 0 ? greeted() : raw();
    // The server may have closed it already.
    error_of<DistError>([&] { send_all(socket, noise, after(kPatient), "the server"); });
  }
  EXPECT_EQ(store.get("x", kPatient), "still here");
}

TEST_F(StoreTest, SilentAndSlowPeersAreNoTrouble) {
  Store store = client();
  const Fd silent = raw(), half = greeted();
  send_all(half, std::string("\x40\0", 2), after(kPatient), "the server");
  // A message in pieces is one message.
  const Fd slow = greeted();
  const std::string request = set_request("slow", "came");
  for (const char byte : request) send_all(slow, std::string_view(&byte, 1), after(kPatient), "the server");
  EXPECT_EQ(store.get("slow", kPatient), "came");
}

TEST_F(StoreTest, RequestsBehindAWaitComeInOrder) {
  Store store = client();
  const Fd eager = greeted();
  std::string requests = MessageWriter(static_cast<uint8_t>(StoreOp::kGet)).put(int64_t{30'000}).text("late").finish();
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

TEST_F(StoreTest, WhatAClientHoldsGoesWithIt) {
  Store store = client();
  auto first = std::make_unique<Store>("127.0.0.1", server_.port(), kPatient),
       second = std::make_unique<Store>("127.0.0.1", server_.port(), kPatient);
  first->set_last_message("first/gone", "");
  first->hold("mine", "first");
  first->hold("taken over", "first");
  second->hold("taken over", "second");
  first.reset();
  store.get("first/gone", kPatient);
  EXPECT_EQ(store.get_if_there("mine"), std::nullopt);
  EXPECT_EQ(store.get_if_there("taken over"), "second");
  second->set_last_message("second/gone", "");
  second.reset();
  store.get("second/gone", kPatient);
  EXPECT_EQ(store.get_if_there("taken over"), std::nullopt);
}

TEST_F(StoreTest, AKeyThatGoesIsMissingAgain) {
  Store store = client();
  store.set("a", "");
  std::thread waiter([this] {
    Store other = client();
    const std::vector<std::string> keys = {"a", "b", "b"};
    EXPECT_EQ(other.wait_for(keys, kPatient), std::vector<std::string>());
    EXPECT_EQ(other.get_if_there("c"), "1");
  });
  std::this_thread::sleep_for(kShort);
  store.remove("a");
  store.set("b", "");
  std::this_thread::sleep_for(kShort);
  store.set("c", "1");
  store.set("a", "");
  waiter.join();
}

TEST(StoreToken, OnlyTheJobsOwnClientsAreTaken) {
  const StoreServer server("127.0.0.1", 0, "secret");
  const auto error = [&](const char* token) {
    return error_of<ConnectionError>([&] { Store("127.0.0.1", server.port(), kPatient, token).set("x", "1"); });
  };
  for (const char* token : {"", "secre", "secret2", "Secret"})
    EXPECT_NE(error(token).find("this is the store of another job"), std::string::npos) << token << error(token);
  EXPECT_EQ(error("secret"), "");
  const StoreServer open("127.0.0.1", 0);
  EXPECT_NE(error_of<ConnectionError>([&] { Store("127.0.0.1", open.port(), kPatient, "secret"); }), "");
}

// Somebody was there first: it gets a proof for its own challenge, and cannot answer with one.
TEST(StoreToken, AStrangerAtItsAddressLearnsNothing) {
  const Fd listener = listen_on("127.0.0.1", 0);
  std::string heard;
  std::thread stranger([&] {
    Fd socket;
    while (!socket) socket = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    char bytes[256];
    receive_exactly(socket, bytes, kGreeting.size(), after(kPatient), "a client");
    const auto say = [&](std::string_view text) {
      send_all(socket, MessageWriter(static_cast<uint8_t>(StoreStatus::kOk)).text(text).finish(), after(kPatient), "");
    };
    say(std::string(kHashBytes, 'c'));
    heard.resize(4 + 1 + 2 * (4 + kHashBytes));
    receive_exactly(socket, heard.data(), heard.size(), after(kPatient), "a client");
    say(heard.substr(heard.size() - kHashBytes));  // its own proof, sent back
  });
  const std::string error = error_of<ConnectionError>(
      [&] { Store("127.0.0.1", port_of(listener), kPatient, "secret"); });
  stranger.join();
  EXPECT_NE(error.find("is not that of this job: it does not know the token"), std::string::npos) << error;
  EXPECT_EQ(heard.find("secret"), std::string::npos);
}

TEST(StoreLimitsTest, HalfAMessageAndATokenThatDoesNotComeTimeOut) {
  const StoreServer server("127.0.0.1", 0, "", {.greeting_time = kShort, .stall_time = kShort});
  Store waiter("127.0.0.1", server.port(), kPatient);
  const auto raw = [&] { return connect_to("127.0.0.1", server.port(), after(kPatient)); };
  const Fd silent = raw(), half_greeting = raw(), half = raw(), half_body = raw();
  test::greet(half);
  test::greet(half_body);
  send_all(half_greeting, kGreeting.substr(0, 3), after(kPatient), "the server");
  send_all(half, std::string("\x40\0", 2), after(kPatient), "the server");
  send_all(half_body, set_request("x", "12345").substr(0, 15), after(kPatient), "the server");
  for (const Fd* socket : {&silent, &half_greeting, &half, &half_body}) {
    char byte;
    EXPECT_NE(error_of<ConnectionError>([&] {
                for (;;) receive_exactly(*socket, &byte, 1, after(kPatient), "the server");
              }),
              "");
  }
  // A client that waits, or has nothing to ask, is not affected.
  EXPECT_EQ(waiter.wait_for(std::vector<std::string>{"never"}, 10 * kShort), std::vector<std::string>{"never"});
  std::this_thread::sleep_for(4 * kShort);
  waiter.set("x", "1");
}

TEST(StoreLimitsTest, TooManyConnectionsAreRefusedWithAReason) {
  const StoreServer server("127.0.0.1", 0, "", {.max_connections = 2});
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < 2; ++i) stores.push_back(std::make_unique<Store>("127.0.0.1", server.port(), kPatient));
  const std::string error = error_of<ConnectionError>([&] { Store("127.0.0.1", server.port(), kPatient); });
  EXPECT_NE(error.find("the store has 2 connections and takes no more"), std::string::npos) << error;
  stores.pop_back();
  // The server may see the end of the other one a little later.
  while (stores.size() < 2) try {
      stores.push_back(std::make_unique<Store>("127.0.0.1", server.port(), kPatient));
    } catch (const ConnectionError&) {
      std::this_thread::sleep_for(Milliseconds(5));
    }
  stores[1]->set("x", "1");
}

TEST(StoreLimitsTest, LastMessagesAndWaitingKeysCount) {
  StoreTable table(100'000);
  const std::string large(30'000, 'x');
  EXPECT_EQ(table.set_last_message(1, "a", large), nullptr);
  EXPECT_EQ(table.set_last_message(2, "b", large), nullptr);
  EXPECT_EQ(table.set_last_message(1, "a", large), nullptr);  // instead of the first
  EXPECT_EQ(table.set("c", large), nullptr);
  EXPECT_STREQ(table.set_last_message(3, "d", large), "the store is full");
  EXPECT_STREQ(table.wait(3, std::vector<std::string>(100, "key")), "the store is full");
  EXPECT_FALSE(table.is_waiting(3));
  table.set_last_message(2, "", "");
  EXPECT_EQ(table.set("d", large), nullptr);
  table.forget(1);
  EXPECT_EQ(*table.find("a"), large);
  for (const char* key : {"a", "c", "d"}) table.remove(key);
  table.forget(2);
  EXPECT_EQ(table.bytes(), 0u);
  // Empty values and short keys are not free.
  int n = 0;
  while (table.set(absl::StrCat("key", n), "") == nullptr) ++n;
  EXPECT_LT(n, 1000);
}

// A key costs the clients that wait for it. With all waiters looked through at each set this would take minutes.
TEST(StoreLimitsTest, ManyWaitersCostASetNothing) {
  StoreTable table(size_t{1} << 30);
  for (uint64_t client = 1; client <= 500; ++client) {
    std::vector<std::string> keys;
    for (int i = 0; i < 1000; ++i) keys.push_back(absl::StrCat("waited/", client, "/", i));
    EXPECT_EQ(table.wait(client, std::move(keys)), nullptr);
  }
  for (int i = 0; i < 100'000; ++i) table.set(absl::StrCat("other/", i % 1000), "x");
  EXPECT_TRUE(table.take_satisfied().empty());
  for (int i = 0; i < 1000; ++i) table.set(absl::StrCat("waited/7/", i), "");
  EXPECT_EQ(table.take_satisfied(), std::vector<StoreTable::Client>{7});
  for (uint64_t client = 1; client <= 500; ++client) table.forget(client);
}

TEST(StoreConnection, ErrorsOfAStoreThatIsNotThere) {
  int port = 0;
  {
    const StoreServer server("127.0.0.1", 0);
    port = server.port();
  }
  EXPECT_NE(error_of<TimeoutError>([&] { Store("127.0.0.1", port, kShort); }).find(absl::StrCat("127.0.0.1:", port)),
            std::string::npos);
  // Where no name server answers, that is a TimeoutError.
  EXPECT_NE(error_of([] { Store("no.such.host.invalid", 1, kShort); }).find("no.such.host.invalid"), std::string::npos);
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

TEST(StoreConnection, ANameServerThatDoesNotAnswerIsATimeout) {
  const auto answered = std::make_shared<std::atomic<bool>>(false);
  const HostLookup never = [answered](const std::string&, std::string&) {
    while (!*answered) std::this_thread::sleep_for(Milliseconds(1));
    return std::vector<std::string>();
  };
  EXPECT_NE(error_of<TimeoutError>([&] {
              connect_to("some.host", 1, after(kShort), never);
            }).find("no name server answers for the host \"some.host\""),
            std::string::npos);
  *answered = true;
}

// A machine that comes back under another address, and a name that is known later.
TEST(StoreConnection, NamesAreLookedUpAgain) {
  const Fd listener = listen_on("127.0.0.1", 0);
  std::atomic<int> n = 0;
  const HostLookup lookup = [&n](const std::string&, std::string& error) -> std::vector<std::string> {
    const int now = n++;
    if (now == 0) error = "not yet";
    if (now == 0) return {};
    return {now == 1 ? "127.0.0.2" : "127.0.0.1"};
  };
  EXPECT_TRUE(connect_to("some.host", port_of(listener), after(kPatient), lookup));
  EXPECT_EQ(n, 3);
}

}  // namespace
}  // namespace rondo::dist
