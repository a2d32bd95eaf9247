// The memory of the fake's devices: address space that the host may not touch unless the fake opens it. Every block
// stands alone: behind it a page that nobody may touch, freed blocks are closed, addresses are used again late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

namespace rondo::fake_cuda {

struct Block {
  uintptr_t address = 0;
  size_t bytes = 0;  // that were asked for
  int device = 0;
  bool open_later = false;     // an asynchronous allocation that the stream has not reached
  bool live = true;            // false: freed; it is kept to name it
  bool freed_by_call = false;  // the call to free it was made; the stream may not have reached it
  std::vector<uint32_t> uses;  // by stream: the number of the last work that got its address
  const char* last_user = "";
};

class Memory {
 public:
  // Not `real`: address space that nothing may touch.
  Memory(int devices, size_t bytes, bool real = true);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Null: the device has no such room.
  Block* allocate(int device, size_t bytes, bool open_later);
  // The bytes are poison from now on.
  void make_live(Block& block);
  // False: something was written behind the block.
  bool release(Block& block);
  Block* find(uintptr_t address);          // the block, live or freed, in which the address lies; null: none
  bool contains(uintptr_t address) const;  // in any device's range
  int device_of(uintptr_t address) const;
  size_t used(int device) const { return used_[static_cast<size_t>(device)]; }
  size_t bytes() const { return bytes_; }
  int64_t live_blocks() const;     // with those that the stream has not reached
  void forget_device(int device);  // frees all of its blocks

  // Opens the live blocks of these devices (a bit for each); the others are closed.
  void open(unsigned devices);
  void close() { open(0); }

 private:
  void protect(const Block& block, bool open);
  const size_t bytes_;
  const bool real_;
  std::vector<std::byte*> ranges_;
  std::vector<size_t> next_, used_;
  std::map<uintptr_t, Block> blocks_;
  std::unordered_set<Block*> live_;  // of blocks_, those that the stream has reached: few of many
  unsigned open_ = 0;
};

}  // namespace rondo::fake_cuda
