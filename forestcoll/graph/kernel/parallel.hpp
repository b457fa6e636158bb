// Loops over independent items on all cores; Ctrl-C still ends them.
#pragma once

#include <atomic>
#include <thread>

#include "graph.hpp"

namespace forestcoll {

// Set in threads that this file has started: poll_signals then looks here, not at Python.
inline thread_local const std::atomic<bool>* stop_asked = nullptr;

struct Stopped : std::runtime_error {
  Stopped() : std::runtime_error("stopped") {}
};

// Calls work(i) for every i below `count`, from several threads where `heavy` says that it pays. What
// any of them throws is thrown here, once all have ended; the others stop at their next item or poll.
template <typename Work>
void parallel_for(int count, bool heavy, const Work& work) {
  const int cores = static_cast<int>(std::min(8u, std::max(1u, std::thread::hardware_concurrency())));
  const int threads = heavy && !stop_asked ? std::min(cores, count) : 1;
  if (threads <= 1) {
    for (int i : range(count)) work(i);
    return;
  }
  std::atomic<int> next{0};
  std::atomic<bool> stop{false};
  std::vector<std::exception_ptr> failed(threads);
  auto run = [&](int number) {
    try {
      for (int i; !stop && (i = next++) < count;) work(i);
    } catch (...) {
      failed[number] = std::current_exception();
      stop = true;
    }
  };
  {
    std::vector<std::jthread> others;  // joined at the end
    for (int number = 1; number < threads; ++number)
      others.emplace_back([&, number] {
        stop_asked = &stop;
        run(number);
      });
    run(0);
  }
  for (bool own : {true, false})  // a real error before the mere order to stop
    for (const std::exception_ptr& error : failed) {
      if (!error) continue;
      try {
        std::rethrow_exception(error);
      } catch (const Stopped&) {
        if (!own) throw;
      }
    }
}

}  // namespace forestcoll
