// What goes to other processes: bytes into their memory, then a number that says so.
//
// Every wait of a plan is local already: what a thread block waits for lies with its process. So all
// that a process ever does to another one is to write there, first data, then a number that only it
// changes. A wire does that, by whatever transport. Its rules, which every kind of wire keeps:
//
// - `post` may be called by any thread; it never waits and never fails.
// - An effect with a number arrives after its bytes, and after all effects that were posted to this
//   peer before it. Two effects without a number may arrive in any order.
// - The bytes may be read until the effect has left; then `Receiver::left` is called, once.
// - Values of one number only grow.
//
// Processes are numbered from 0; a peer is another process.

#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "interpreter.hpp"

namespace forestcoll {

// What goes before the bytes of an effect. Both ends are little-endian (the handshake compares).
struct Header {
  Number number = Number::none;
  Index object = 0;  // connection, semaphore, rank or thread block
  Count value = 0;
  Amount place = 0, bytes = 0;  // in the peer's arena; fetched: in the sender's
};
static_assert(sizeof(Header) == 32);

using Kept = std::shared_ptr<byte[]>;

struct Effect : Header {
  const byte* source = nullptr;  // the bytes, ...
  Kept kept;                     // ... which this holds, unless they lie in the poster's arena
  Index rank = -1;               // whose memory they are read from; -1: nobody's who would wait
  byte* target = nullptr;        // where the receiver has placed them
};

// Whether its bytes lie in an arena of so many, packets in whole words.
inline bool fits(const Effect& e, Amount arena) {
  return e.place >= 0 && e.bytes >= 0 && e.place <= arena - e.bytes &&
         (e.number != Number::packets || (e.bytes | e.place) % 8 == 0);
}

inline constexpr const char* nonsense = "it sent what belongs to no plan of ours";

// Where a wire delivers; it calls from its own thread, one call at a time, except for `left`, which
// may come from within `post`.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // The bytes of an effect have a place here; nullptr: they do not, and the peer is at fault.
  virtual byte* place(int peer, const Effect& effect) = 0;
  // Its bytes are there, at `effect.target`. false: there is no such number.
  virtual bool arrived(int peer, const Effect& effect) = 0;
  virtual void left(const Effect& effect) = 0;
};

// Packets are words of eight bytes, which must never be seen half written.
inline void store_words(byte* target, const byte* source, Amount bytes) {
  for (Amount done = 0; done < bytes; done += 8) {
    std::uint64_t word;
    std::memcpy(&word, source + done, sizeof word);
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(target + done))
        .store(word, std::memory_order_release);
  }
}

// Between two looks at what others may have left for this thread: whoever waits must not keep them
// from the processor.
class Pause {
 public:
  void turn(bool busy) {
    if (busy) {
      idle_ = 0;
    } else if (++idle_ > spins) {
      const timespec nap{0, idle_ > 2 * spins ? 50'000 : 0};
      nanosleep(&nap, nullptr);
    } else if (idle_ > spins / 4) {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int spins = 2000;
  int idle_ = 0;
};

class Wire {
 public:
  Wire(int processes) : sent_(processes), received_(processes) {}
  virtual ~Wire() = default;
  // `addresses`: of all processes' wires. Throws std::runtime_error with the reason.
  void begin(Receiver& receiver, const std::vector<std::string>& addresses) {
    receiver_ = &receiver;
    start(addresses);
  }
  void post(int peer, Effect effect) {
    sent_[peer].fetch_add(1);
    under_way_.fetch_add(1);
    send(peer, std::move(effect));
  }
  // Empty as long as all is well; else why effects no longer arrive, and of which peer.
  std::string failure(int& peer) {
    const std::lock_guard lock(failing_);
    peer = failed_;
    return reason_;
  }

  std::vector<Count> sent() const { return {sent_.begin(), sent_.end()}; }  // effects, per peer
  std::vector<Count> received() const { return {received_.begin(), received_.end()}; }
  Amount under_way() const { return under_way_.load(); }  // posted, not yet left
  int processes() const { return sent_.size(); }

  std::string address;   // what other processes' wires begin with, if they need it
  bool reaches = false;  // memory of the arena's kind

 protected:
  virtual void start(const std::vector<std::string>& addresses) = 0;
  virtual void send(int peer, Effect effect) = 0;
  void fail(int peer, const std::string& reason) {  // the first is the one that counts
    const std::lock_guard lock(failing_);
    if (!reason_.empty()) return;
    failed_ = peer;
    reason_ = reason;
  }
  void has_left(const Effect& effect) {
    receiver_->left(effect);
    under_way_.fetch_sub(1);
  }
  bool has_arrived(int peer, const Effect& effect) {  // false: the peer is at fault
    const bool fits = receiver_->arrived(peer, effect);
    received_[peer].fetch_add(1);
    return fits;
  }
  Receiver* receiver_ = nullptr;

 private:
  std::vector<std::atomic<Count>> sent_, received_;  // effects, per peer
  std::atomic<Amount> under_way_{0};
  std::mutex failing_;
  int failed_ = -1;
  std::string reason_;
};

// Over connected stream sockets, one for each peer (-1: none), which it closes at its end.
std::unique_ptr<Wire> make_sockets(const std::vector<int>& descriptors);

// Memory that may be no processor's, as UCX numbers kinds of it. `reads_back`: whether what has arrived
// there is seen by its device only once some of it was read by the way that it came.
struct Arena {
  byte* start;
  Amount bytes, kind, reads_back;
};

// What a library that has a wire (ucx.cpp) makes it by. Throws std::runtime_error with the reason.
extern "C" Wire* forestcoll_open(int processes, int self, const Arena& arena);

// That of the last of these, which need those before them and stay for as long as the process lives.
std::unique_ptr<Wire> load_wire(const std::vector<std::string>& libraries, int processes, int self,
                                const Arena& arena);

// A wire that nobody has begun yet. It is joined by once.
struct Way {
  std::unique_ptr<Wire> wire;
  std::vector<std::string> addresses;

  void join(Receiver& receiver, std::unique_ptr<Wire>& place) {
    place = std::move(wire);
    place->begin(receiver, addresses);
  }
};

}  // namespace forestcoll
