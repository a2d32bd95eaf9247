// The connections between the ranks of a group. Each one is proved before it is used.
//
// Note [Proved connections]
// Any process of this machine can connect to a port that a rank listens on. So a connection counts only after both ends
// have proved that they know the job's token. Nothing else goes over a connection before its proof, and the proved
// socket itself is used from then on.
// - A rank publishes its address in the store, with a challenge: random bytes that are used for this group only. The
//   store has already asked for the token, so strangers do not see the challenge.
// - The rank that connects (the higher one) sends both rank numbers, its own random bytes, and a keyed hash of these,
//   the challenge and the group's name. The rank that listens answers with another keyed hash of the same data. The two
//   hashes begin with different words, so neither can be sent back as the other.
// - A rank that listens sends nothing to a connection that has proved nothing: a stranger never gets a byte. The rank
//   closes such a connection at the first wrong byte, or after a few seconds. It serves all connections at once, so a
//   stranger that holds one open delays nobody. It accepts one connection from each rank, so an attacker gains nothing
//   by replaying a recorded proof.
// - A rank that connects and gets no proof closes the connection, and connects again until the timeout is over.
// The token protects against other users of this machine. It does not encrypt: someone who reads or changes the network
// (root, or another machine on the way) can still interfere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/transport/store.h"

namespace rondo::dist {

struct MeshOptions {
  std::string prefix;  // begins the group's keys in the store; unique to this group
  std::string token;   // the job's token
  int rank = 0, world_size = 1;
  Milliseconds timeout{0};         // for connecting to all ranks
  Milliseconds proof_time{5'000};  // how long an accepted connection may take to send its proof
};

// Returns one connection to each rank; the one to this rank itself is empty. The sockets do not block. All ranks call
// it. Throws MissingRanksError, which names the ranks that did not connect; ConnectionError.
std::vector<Fd> connect_mesh(Store& store, const MeshOptions& options);

}  // namespace rondo::dist
