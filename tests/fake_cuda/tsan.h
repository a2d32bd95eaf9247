// The view that TSan has of the fake. A real driver is no code of ours, and orders nothing between two threads that
// call it. The fake's one lock would order all of them, and hide the races of its callers: so TSan sees neither that
// lock nor what happens inside of a call. RONDO_FAKE_CUDA_SEEN=1: it sees all, for the fake's own races.
//
// There, callbacks of the host are run by a thread of their own, as by a real driver: behind the call that enqueued
// them, before a wait for them returns.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cstdlib>
#include <thread>

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

// True inside of a callback of the host.
bool& in_callback();

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
// The thread of the driver's. Nothing but two addresses orders its work and what other threads do. One callback at a
// time: the fake's lock is held.
class DriverThread {
 public:
  struct Work {
    void (*function)(void*);
    void *data, *enqueued, *done;
  };
  static DriverThread& instance() {
    static auto* const thread = new DriverThread;
    return *thread;
  }
  void run(const Work& work) {
    work_.store(&work);
    while (work_.load() != nullptr) std::this_thread::yield();
  }

 private:
  DriverThread() {
    std::thread([this] {
      begin_unseen();
      in_callback() = true;
      for (;; std::this_thread::yield())
        if (work_.load() != nullptr) {
          const Work work = *work_.load();
          end_unseen();
          __tsan_acquire(work.enqueued);
          work.function(work.data);
          __tsan_release(work.done);
          begin_unseen();
          work_.store(nullptr);
        }
    }).detach();
  }
  std::atomic<const Work*> work_{nullptr};
};
// Runs a callback there, behind what released `enqueued` and before what acquires `done`.
inline void run_as_driver(void (*function)(void*), void* data, void* enqueued, void* done) {
  DriverThread::instance().run({function, data, enqueued, done});
}

#else

inline void begin_unseen() {}
inline void end_unseen() {}
inline void release_order(void*) {}
inline void acquire_order(void*) {}
inline void run_as_driver(void (*function)(void*), void* data, void*, void*) {
  in_callback() = true;
  function(data);
  in_callback() = false;
}

#endif

}  // namespace rondo::fake_cuda
