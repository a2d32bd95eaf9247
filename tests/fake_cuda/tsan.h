// What TSan sees of the fake. A real driver is no code of ours, and orders nothing between two threads that call it.
// The fake's one lock would order all of them, and hide the races of its callers: so TSan sees neither that lock nor
// what happens inside of a call. RONDO_FAKE_CUDA_SEEN=1: it sees all, for the fake's own races.
//
// Callbacks of the host are run by a thread of their own, as by a real driver: behind the call that enqueued them,
// before a wait for them returns.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>

#include <cstdlib>

extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace rondo::fake_cuda {

#if defined(__SANITIZE_THREAD__)

inline bool seen() {
  static const bool all = std::getenv("RONDO_FAKE_CUDA_SEEN") != nullptr;
  return all;
}
// Between them, this thread's accesses and locks do not exist.
inline void begin_unseen() {
  if (seen()) return;
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
inline void end_unseen() {
  if (seen()) return;
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
}
// What comes before a release of an address comes before what follows an acquire of it. Inside of a call.
inline void release_order(void* address) {
  end_unseen();
  __tsan_release(address);
  begin_unseen();
}
inline void acquire_order(void* address) {
  end_unseen();
  __tsan_acquire(address);
  begin_unseen();
}
// Runs `callback` as the driver's thread, behind what released `enqueued` and before what acquires `done`.
template <class Callback> void run_as_driver(void* enqueued, void* done, const Callback& callback) {
  static void* const driver = __tsan_create_fiber(0);
  void* const caller = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(driver, __tsan_switch_to_fiber_no_sync);
  __tsan_acquire(enqueued);
  callback();
  __tsan_release(done);
  __tsan_switch_to_fiber(caller, __tsan_switch_to_fiber_no_sync);
}

#else

inline void begin_unseen() {}
inline void end_unseen() {}
inline void release_order(void*) {}
inline void acquire_order(void*) {}
template <class Callback> void run_as_driver(void*, void*, const Callback& callback) { callback(); }

#endif

}  // namespace rondo::fake_cuda
