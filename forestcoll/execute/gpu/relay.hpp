// The host's half of a GPU's way to other nodes: what its thread blocks write into their rings goes
// onto the wire, and what arrives from there into the GPU's memory, then its number to where they look.
//
// A thread empties the rings while a launch runs. Where the wire does not reach the GPU's memory, data
// goes through pinned memory of the host, by the GPU's copy engines.

#pragma once

#include "../cluster/far.hpp"
#include "ring.hpp"

namespace forestcoll {

class Relay : public Receiver {
 public:
  static constexpr Amount apart = 16;

  struct Layout {
    byte* arena;  // the GPU's memory that others write
    Amount bytes;
    Ring* rings;
    Amount ring_count;
    Count* numbers;  // where the kernel looks for them, `apart` from each other
    Amount connections, slot_bytes, slots;
    byte* pool;  // pinned memory, so many pieces
    Amount pieces;
    // Copies into the GPU's memory and out of it, by `device`; 0: done.
    int (*write)(void* device, void* to, const void* from, std::size_t bytes);
    int (*read)(void* device, const void* from, void* to, std::size_t bytes);
    void* device;
  };

  // There is a number for each connection (`posted`), one more for each (`taken`), then for each semaphore.
  // `peers`: whom each is told; `slots`: of connections, their places in the readers' arenas.
  Relay(const Space& space, const Layout& layout, std::vector<Amount> peers, std::vector<Amount> slots)
      : space_(space), layout_(layout), peers_(std::move(peers)), slots_(std::move(slots)) {
    for (Amount k = 0; k < layout.pieces; ++k) free_.push_back(layout.pool + k * piece);
  }
  ~Relay() override { close(); }
  void close() {
    give_up();
    end();
    wire_.reset();
  }

  // `reaches`: the wire reads and writes the GPU's memory.
  void join(Way& way, bool reaches) {
    staged_ = !reaches;
    way.join(*this, wire_);
  }

  // Before a launch, with the numbers as at first; at all ranks before any kernel starts.
  void begin() {
    end();
    const std::lock_guard lock(mutex_);
    std::fill_n(layout_.rings, layout_.ring_count, Ring{});
    lanes_ = std::vector<Lane>(layout_.ring_count);
    told_.assign(peers_.size(), 0);
    heard_.assign(space_.processes(), told_);
    std::fill_n(layout_.numbers, apart * peers_.size(), 0);
    ending_ = given_up_ = false;
    thread_ = std::thread([this] { run(); });
  }
  // Once the kernel has ended: until all that it wrote is with the wire. Or it is given up, by any thread.
  void end() {
    ending_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void give_up() { given_up_ = true; }

  Wire& wire() { return *wire_; }
  std::string failure(int& peer) {  // empty: none; peer -1: the GPU's
    peer = -1;
    return broken_ ? "a copy between the GPU and its host failed" : wire_->failure(peer);
  }

  // --- for the wire

  byte* place(int, const Effect& e) override {
    if (!fits(e, layout_.bytes) || (stages(e) && e.bytes > piece)) return nullptr;
    if (!stages(e)) return layout_.arena + e.place;
    byte* const memory = take_piece();  // all in use: memory that is not pinned does as well
    return memory ? memory : new byte[piece];
  }

  bool arrived(int peer, const Effect& e) override {
    if (e.bytes && stages(e)) {
      if (layout_.write(layout_.device, layout_.arena + e.place, e.target, e.bytes)) broken_ = true;
      free_piece(e.target);
    }
    if (!has_number(e.number)) return true;
    const Amount index = index_of(e.number, e.object);
    if (index < 0 || index >= std::ssize(peers_)) return false;
    const std::lock_guard lock(mutex_);
    std::atomic_ref(layout_.numbers[apart * index]) += e.value - std::exchange(heard_[peer][index], e.value);
    return true;
  }

  void left(const Effect& e) override {
    if (e.rank >= 0) --lanes_[e.rank].open;
  }

 private:
  struct Lane {  // of a ring: entries taken out, and parts of them that have not left
    Count next = 0;
    std::atomic<Index> open{0};
  };

  static bool has_number(Number number) { return number != Number::none && number != Number::packets; }
  Amount index_of(Number number, Index object) const {
    return (static_cast<Amount>(number) - 1) * layout_.connections + object;
  }
  bool stages(const Effect& e) const { return staged_ || e.number == Number::packets; }

  // Entries of all rings in their order: a number says that bytes are there which other thread blocks may
  // have put.
  void run() {
    Count next = 1;
    for (Pause pause; !given_up_;) {
      const bool last = ending_;
      bool busy = false;
      for (Amount k = 0; k < layout_.ring_count; ++k) {
        Ring& ring = layout_.rings[k];
        Lane& lane = lanes_[k];
        for (;; ++lane.next, ++next, busy = true) {
          RingEntry& entry = ring.entries[lane.next % ring_entries];
          if (std::atomic_ref(entry.last) << 32 != next << 32) break;
          send(k, entry);
        }
        if (!lane.open) std::atomic_ref(ring.completed) = lane.next;
      }
      if (last && !busy) return;
      pause.turn(busy);
    }
  }

  // What is staged has been read at once.
  void send(Index ring, const RingEntry& entry) {
    Effect e{{entry.number, entry.object, 0, 0, Amount(entry.last >> 32)}, entry.own};
    int peer = space_.process_of(entry.far);
    if (has_number(e.number)) {
      const Amount index = index_of(e.number, e.object);
      peer = peers_[index];
      e.place = slots_[index] + told_[index] % layout_.slots * layout_.slot_bytes;
      e.value = ++told_[index];
    } else {
      e.place = entry.far - space_.arena(peer);
    }
    if (staged_ && e.bytes) {
      byte* memory;
      for (Pause pause; !(memory = take_piece()); pause.turn(false))
        if (given_up_) return;
      e.kept = {memory, [this](byte* back) { free_piece(back); }};
      if (layout_.read(layout_.device, e.source, memory, e.bytes)) broken_ = true;
      e.source = memory;
    } else if (e.bytes) {
      e.rank = ring;
      ++lanes_[ring].open;
    }
    wire_->post(peer, std::move(e));
  }

  byte* take_piece() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return nullptr;
    byte* const memory = free_.back();
    free_.pop_back();
    return memory;
  }
  void free_piece(byte* memory) {
    const std::lock_guard lock(mutex_);
    if (memory >= layout_.pool && memory < layout_.pool + layout_.pieces * piece)
      free_.push_back(memory);
    else
      delete[] memory;
  }

  const Space& space_;
  const Layout layout_;
  const std::vector<Amount> peers_, slots_;
  bool staged_ = true;
  std::vector<Lane> lanes_;
  std::vector<Count> told_;                // per number
  std::vector<std::vector<Count>> heard_;  // per peer, per number
  std::vector<byte*> free_;
  std::mutex mutex_;  // of the last two
  std::atomic<bool> ending_ = false, given_up_ = false, broken_ = false;
  std::unique_ptr<Wire> wire_;
  std::thread thread_;
};

}  // namespace forestcoll
