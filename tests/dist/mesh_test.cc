// The connections between ranks, and what a stranger can and cannot do to them.
#include "rondo/dist/transport/mesh.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/transport/keyed_hash.h"
#include "rondo/dist/transport/messages.h"
#include "rondo/dist/transport/rendezvous.h"
#include "rondo/dist/transport/store_protocol.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::error_of;

constexpr Milliseconds kPatient{60'000};

TEST(KeyedHash, EqualsPublishedValues) {
  const auto hex = [](const std::string& bytes) { return absl::BytesToHexString(bytes); };
  // FIPS 180-4's examples, and a length on each side of a block's end.
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // RFC 4231, cases 1, 2, 3 and 6 (a key longer than a block).
  EXPECT_EQ(hex(keyed_hash(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(keyed_hash("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(keyed_hash(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hex(keyed_hash(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_NE(random_bytes(32), random_bytes(32));
  EXPECT_TRUE(same_bytes("abc", "abc"));
  for (const char* other : {"abd", "ab", "abcd", ""}) EXPECT_FALSE(same_bytes("abc", other));
}

class MeshTest : public testing::Test {
 protected:
  Store client() const { return Store("127.0.0.1", server_.port(), kPatient); }
  MeshOptions options(int rank, int world_size, Milliseconds timeout = kPatient) const {
    return {.prefix = "group/1/", .token = "token", .rank = rank, .world_size = world_size, .timeout = timeout};
  }
  // A rank in a thread of its own. What it throws is its text.
  struct Rank {
    std::vector<Fd> connections;
    std::string error;
    std::thread thread;
  };
  void start(Rank& rank, const MeshOptions& options) const {
    rank.thread = std::thread([this, &rank, options] {
      Store store = client();
      try {
        rank.connections = connect_mesh(store, options);
      } catch (const DistError& e) {
        rank.error = e.what();
      }
    });
  }
  // Where a rank listens, as it says in the store.
  struct Address {
    int port = 0;
    std::string challenge;
  };
  Address address_of(int rank) const {
    const std::string value = client().get(absl::StrCat("group/1/address/", rank), kPatient);
    MessageReader fields(std::string_view(value).substr(5));
    fields.text();
    const auto port = static_cast<int>(fields.get<uint32_t>());
    return {port, std::string(fields.text())};
  }
  static Fd knock(int port, std::string_view bytes = "") {
    Fd socket = connect_to("127.0.0.1", port, after(kPatient));
    send_all(socket, bytes, after(kPatient), "a rank");
    return socket;
  }
  // The bytes that come until the other side closes the connection.
  static std::string answer_of(const Fd& socket) {
    std::string all;
    char byte = 0;
    try {
      for (;; all.push_back(byte)) receive_exactly(socket, &byte, 1, after(Milliseconds(10'000)), "a rank");
    } catch (const ConnectionError&) {
      return all;
    } catch (const TimeoutError&) {
      return "it was held";
    }
  }
  // As rank `from` begins.
  static std::string hello(int from, int to, std::string_view challenge, std::string_view token,
                           std::string_view word = "connects") {
    const std::string random = random_bytes(32);
    MessageWriter message(0);
    message.text(word).text("group/1/").put(int32_t{from}).put(int32_t{to}).text(challenge).text(random);
    std::string bytes = "RONDOPR1";
    bytes.append(reinterpret_cast<const char*>(&from), 4).append(reinterpret_cast<const char*>(&to), 4);
    return bytes + random + keyed_hash(token, message.finish());
  }

  const StoreServer server_{"127.0.0.1", 0};
};

TEST_F(MeshTest, OnlyAProofOpensTheDoor) {
  Rank zero;
  start(zero, options(0, 2));
  const Address address = address_of(0);
  const std::string right = hello(1, 0, address.challenge, "token");
  std::vector<std::string> wrong = {
      "GET / HTTP/1.1\r\n\r\n",
      std::string(80, '\0'),
      hello(1, 0, address.challenge, "another token"),
      hello(1, 0, random_bytes(32), "token"),              // another challenge
      hello(1, 0, address.challenge, "token", "listens"),  // the other direction
      hello(0, 0, address.challenge, "token"),             // a rank below the others
      hello(2, 0, address.challenge, "token"),             // no such rank
      hello(1, 1, address.challenge, "token"),             // for another rank
      hello(-1, 0, address.challenge, "token"),
  };
  for (size_t i = 0; i < right.size(); ++i) wrong.push_back(right), wrong.back()[i] ^= 1;  // any bit counts
  for (const std::string& bytes : wrong) EXPECT_EQ(answer_of(knock(address.port, bytes)), "") << bytes.substr(0, 16);
  const Fd rank_one = knock(address.port, right);
  char answer[kHashBytes];
  receive_exactly(rank_one, answer, sizeof answer, after(kPatient), "rank 0");
  zero.thread.join();
  EXPECT_EQ(zero.error, "");
  EXPECT_TRUE(zero.connections[1]);
}

TEST_F(MeshTest, AProofCountsOnce) {
  Rank zero;
  start(zero, options(0, 3));
  const Address address = address_of(0);
  const std::string proof = hello(1, 0, address.challenge, "token");
  const Fd rank_one = knock(address.port, proof);
  char answer[kHashBytes];
  receive_exactly(rank_one, answer, sizeof answer, after(kPatient), "rank 0");
  EXPECT_EQ(answer_of(knock(address.port, proof)), "");
  const Fd rank_two = knock(address.port, hello(2, 0, address.challenge, "token"));
  zero.thread.join();
  EXPECT_EQ(zero.error, "");
  // It is the first connection that was kept.
  send_all(zero.connections[1], "x", after(kPatient), "rank 1");
  receive_exactly(rank_one, answer, 1, after(kPatient), "rank 0");
  EXPECT_EQ(answer[0], 'x');
}

TEST_F(MeshTest, AHeldConnectionDelaysNobody) {
  Rank zero, one;
  MeshOptions quick = options(0, 2);
  quick.proof_time = Milliseconds(300);
  start(zero, quick);
  const Address address = address_of(0);
  // Half a proof is held as silence is.
  const Fd silent = knock(address.port), half = knock(address.port, "RONDOPR1xxxx");
  EXPECT_EQ(answer_of(silent), "");
  EXPECT_EQ(answer_of(half), "");
  std::vector<Fd> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(knock(address.port));
  start(one, options(1, 2));
  zero.thread.join();
  one.thread.join();
  EXPECT_EQ(zero.error + one.error, "");
}

// Something else listens where a rank is said to listen: the rank's process has ended, and its port was taken.
TEST_F(MeshTest, WhoAnswersWithoutAProofGetsNothing) {
  const Fd stranger = listen_on("127.0.0.1", 0);
  MessageWriter address(0);
  address.text("127.0.0.1").put(static_cast<uint32_t>(port_of(stranger))).text(random_bytes(32));
  client().set("group/1/address/0", address.finish());
  Rank one;
  start(one, options(1, 2, Milliseconds(1'500)));
  std::vector<Fd> taken;
  std::string heard;
  for (const Deadline end = after(Milliseconds(1'500)); std::chrono::steady_clock::now() < end;
       std::this_thread::sleep_for(Milliseconds(5))) {
    Fd socket(::accept4(stranger.get(), nullptr, nullptr, SOCK_NONBLOCK));
    if (!socket) continue;
    char bytes[4096];
    std::this_thread::sleep_for(Milliseconds(20));
    const ssize_t n = ::recv(socket.get(), bytes, sizeof bytes, 0);
    if (n > 0) heard.assign(bytes, static_cast<size_t>(n));
    // The first is sent back what it said, the others get noise.
    send_all(socket, taken.empty() ? heard.substr(heard.size() - kHashBytes) : random_bytes(kHashBytes),
             after(kPatient), "rank 1");
    taken.push_back(std::move(socket));
  }
  one.thread.join();
  EXPECT_EQ(heard.size(), 80u);  // the proof, and no more
  EXPECT_GT(taken.size(), 1u);   // it tried again
  EXPECT_NE(one.error.find("rank 1 is not connected with rank 0 (what listens at 127.0.0.1:"), std::string::npos)
      << one.error;
  EXPECT_NE(one.error.find("does not know the job's token) after 1500 ms"), std::string::npos) << one.error;
}

TEST_F(MeshTest, ARankThatPublishesNothingIsNamed) {
  Store store = client();
  const auto ranks = [&] {
    try {
      connect_mesh(store, options(1, 3, Milliseconds(50)));
    } catch (const MissingRanksError& e) {
      EXPECT_STREQ(e.what(), "rank 1 is not connected with rank 0 (it has published no address) after 50 ms");
      return e.ranks;
    }
    return std::vector<int>();
  };
  EXPECT_EQ(ranks(), std::vector<int>{0});
}

// ---- Messages over connections
struct Ends {
  Ends() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    std::vector<Fd> first(2), second(2);
    first[1] = Fd(fds[0]);
    second[0] = Fd(fds[1]);
    zero = std::make_unique<Messages>(std::move(first));
    one = std::make_unique<Messages>(std::move(second));
  }
  std::unique_ptr<Messages> zero, one;
};

TEST(Messages, MoveBothWaysAtOnceWhateverTheirSize) {
  Ends ends;
  const auto run = [](Messages& messages, int peer, char mine, char theirs) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{5} << 20}) {
      const std::string out(bytes, mine);
      std::string in(2 * bytes, '?');
      Messages::Count count;
      messages.receive(peer, bytes, in.data(), bytes, count);
      messages.receive(peer, bytes + 1, in.data() + bytes, bytes, count);
      messages.send(peer, bytes, out.data(), bytes, count);
      messages.send(peer, bytes + 1, out.data(), bytes, count);
      for (int i = 0; i < 2; ++i) messages.wait_received(count, after(kPatient));
      for (int i = 0; i < 2; ++i) messages.wait_sent(count, after(kPatient));
      EXPECT_EQ(in, std::string(2 * bytes, theirs));
    }
  };
  std::thread other([&] { run(*ends.one, 0, 'b', 'a'); });
  run(*ends.zero, 1, 'a', 'b');
  other.join();
}

TEST(Messages, AnotherSizeOrSlotIsAnError) {
  for (const bool other_slot : {false, true}) {
    Ends ends;
    Messages::Count sent, received;
    char out[16] = {}, in[16] = {};
    ends.zero->send(1, 7, out, 8, sent);
    ends.one->receive(0, other_slot ? 8 : 7, in, other_slot ? 8 : 9, received);
    EXPECT_NE(error_of<ConnectionError>([&] {
                ends.one->wait_received(received, after(kPatient));
              }).find(other_slot ? "sends 8 bytes (7) where 8 (8) are due" : "sends 8 bytes (7) where 9 (7) are due"),
              std::string::npos);
    EXPECT_NE(error_of<ConnectionError>([&] { ends.one->send(0, 1, out, 1, received); }), "");
    ends.one->forget(received);
    // The other side learns it, too.
    ends.zero->receive(1, 1, in, 1, sent);
    EXPECT_NE(error_of<ConnectionError>([&] { ends.zero->wait_received(sent, after(kPatient)); }), "");
    ends.zero->forget(sent);
  }
}

TEST(Messages, WaitsEnd) {
  Ends ends;
  Messages::Count count;
  char in[8];
  ends.zero->receive(1, 1, in, 8, count);
  std::thread interrupter([&] {
    std::this_thread::sleep_for(Milliseconds(20));
    ends.zero->interrupt();
  });
  EXPECT_FALSE(ends.zero->wait_received_or_interrupted(count, after(kPatient)));
  interrupter.join();
  EXPECT_NE(error_of<TimeoutError>([&] { ends.zero->wait_received(count, after(Milliseconds(20))); }), "");
  ends.zero->forget(count);
  EXPECT_NE(error_of<ConnectionError>([&] { ends.zero->receive(1, 1, in, 8, count); }), "");

  Ends others;
  Messages::Count late;
  others.zero->receive(1, 1, in, 8, late);
  others.one->close();
  EXPECT_NE(error_of<ConnectionError>([&] {
              others.zero->wait_received(late, after(kPatient));
            }).find("rank 1 closed the connection"),
            std::string::npos);
  others.zero->forget(late);
}

// poll(2) takes no more descriptors than the process may have. The limit may come later than the connections.
TEST(Messages, APollThatFailsIsAnError) {
  Ends ends;
  Messages::Count count;
  char in[8];
  ends.zero->receive(1, 1, in, 8, count);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const std::string error = error_of<ConnectionError>([&] { ends.zero->wait_received(count, after(kPatient)); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(error, "poll: Invalid argument");
  ends.zero->forget(count);
}

}  // namespace
}  // namespace rondo::dist
