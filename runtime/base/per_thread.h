// PerThread: one T for each thread, made when the thread first calls get().
//
//   if (Spare* spare = PerThread<Spare>::get()) spare->blocks.push_back(block);
//
// get() is null once the thread has destroyed its T: at the end of the thread, and on the main thread when main() has
// returned. Destructors of a program's global objects run after that and may call ops, so every caller must handle
// null. A plain thread_local object would be used after its destruction. Only one file may use PerThread of the same T.
#pragma once

namespace rondo {

template <class T> class PerThread {
 public:
  static T* get() {
    static thread_local Owner owner;
    return alive_ ? &owner.value : nullptr;
  }

 private:
  struct Owner {
    T value;
    Owner() { alive_ = true; }
    ~Owner() { alive_ = false; }  // before `value` is destroyed, which may call get()
  };
  static inline thread_local bool alive_ = false;
};

}  // namespace rondo
