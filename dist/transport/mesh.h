// The connections between the ranks of a group. Each one is proved before it is used.
//
// Note [Proved connections]
// Any process of this machine can connect to a port that a rank listens on. So a connection counts only after both ends
// have proved that they know the job's token. The proof is over before anything else goes over the connection, and what
// was proved is the very socket that is used from then on.
// - A rank publishes its address in the store, with a challenge: random bytes that are used for this group only. The
//   store has asked for the token already, so strangers do not see the challenge.
// - The rank that connects (the higher one) sends both ranks, random bytes of its own, and a keyed hash of them, of the
//   challenge and of the group's name. The rank that listens answers with another keyed hash of the same. The two
//   hashes begin with different words, so neither can be sent back as the other.
// - A rank that listens sends nothing to a connection that has proved nothing: a stranger never gets a byte. It closes
//   the connection at the first wrong byte, or after a few seconds, and serves all connections at once: a stranger that
//   holds one delays nobody. It takes one connection for each rank, so that a recorded proof is of no use.
// - A rank that connects and gets no proof closes the connection, and connects again until the timeout is over.
// The token protects against other users of this machine. It does not encrypt: someone who reads or changes the network
// (root, or another machine on the way) is not kept out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/transport/store.h"

namespace rondo::dist {

struct MeshOptions {
  std::string prefix;  // of the group's keys in the store: no other group has it
  std::string token;   // the job's
  int rank = 0, world_size = 1;
  Milliseconds timeout{0};         // for all of it
  Milliseconds proof_time{5'000};  // for a connection to send its proof, from when it is accepted
};

// One connection to each rank; the one to this rank itself is empty. The sockets do not block. All ranks call it.
// Throws MissingRanksError, which names the ranks that did not connect; ConnectionError.
std::vector<Fd> connect_mesh(Store& store, const MeshOptions& options);

}  // namespace rondo::dist
