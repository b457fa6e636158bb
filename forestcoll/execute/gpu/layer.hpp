// The interpreter's layer for GPUs: a thread block of a plan is a thread block of the device.
//
// All threads of a block run the interpreter in step. Thread 0 alone waits and signals; a barrier
// hands on what it saw, and whether the launch is given up, so that all threads go the same way. Data
// is moved by all of them, sixteen bytes at a time where addresses allow, with a barrier behind: the
// interpreter's instructions are one after the other. Whoever publishes (release, system scope) does so
// behind that barrier, which makes the whole block's writes visible to the one who sees (acquire).
//
// Counters lie with whoever waits for them, so that waiting costs no traffic between GPUs: `posted` of
// a connection with its reader, `taken` with its writer, a semaphore with the rank that takes from it.
//
// What goes to another node is an entry in the block's ring (ring.hpp): its pointer to a counter is null
// there, and an address names a place in a space that has no memory. What comes from
// another node the host writes: numbers into its own memory, which blocks poll; a semaphore's is how often
// it was raised from there in all, and whoever takes adds to the semaphore what is new of that.

#pragma once

#include "device.hpp"  // first: a HIP device's memcpy is declared there

#include "../native/elements.hpp"
#include "ring.hpp"

namespace forestcoll::gpu {

// Where a thread block stood; in host memory, written rarely.
struct Stop {
  Amount block = -1, pc, slice, round, piece, finished, awaits, object, wanted, present, mismatch;
};

// Where there are other nodes.
struct Elsewhere {
  Ring* rings;        // per block of this GPU
  const byte* space;  // which stands for all nodes' arenas
  byte* made;         // per block of this GPU: `packets_made`
  Count bytes;        // of the space
};

// All that a launch works with, in the memory of its GPU. Pointers are those of this process; what
// they point at may lie on another GPU. Tables have one entry each over all ranks; their pointers come
// first, in the order in which worker.py gives them.
struct Launch {
  Tables tables;
  const Block* blocks;
  const Index* mine;       // blocks that this GPU runs
  byte* const* addresses;  // 6 per rank: interpreter.hpp, Layer::address
  Count* const* posted;    // per connection
  Count* const* taken;
  byte* const* slots;
  Amount* const* sizes;      // per connection within a node: bytes of the message in each slot
  Count* const* semaphores;
  Count* const* raised;    // per semaphore: by other nodes, if they do
  Count* const* progress;  // per block
  Count* const* arrived;   // per barrier
  Geometry geometry;
  Elsewhere far;
  Count* rung;                  // entries that there ever were: in all rings, then in each
  Count* ticks;                 // per block of this GPU: any change is progress
  Stop* stops;                  // the same, in host memory
  const volatile Index* abort;  // in host memory
  Amount slot_bytes, slot_count;
  Index type, op;
  std::uint32_t number;            // of this launch, from 1: what packets bear
};

struct alignas(16) Vector {
  std::uint64_t low, high;
};

template <class T>
constexpr int per_vector = sizeof(Vector) / sizeof(T);

template <Reduction op, class T>
struct CombineVectors {
  using Element = T;
  FC_DEVICE T operator()(T a, T b) const { return combine_elements<op>(a, b); }
  FC_DEVICE Vector operator()(Vector a, Vector b) const {
    T x[per_vector<T>], y[per_vector<T>];
    memcpy(x, &a, sizeof a);
    memcpy(y, &b, sizeof b);
    for (int i = 0; i < per_vector<T>; ++i) x[i] = combine_elements<op>(x[i], y[i]);
    memcpy(&a, x, sizeof a);
    return a;
  }
};

// Of what is only copied.
struct First {
  using Element = byte;
  template <class T>
  FC_DEVICE T operator()(T a, T) const { return a; }
};

// Divides one element, a complete sum, by the number of ranks.
FC_DEVICE void average_element(Index type, byte* at, int ranks) {
  with_type(static_cast<Type>(type), [&](auto value) {
    memcpy(&value, at, sizeof value);
    value = divide_element(value, ranks);
    memcpy(at, &value, sizeof value);
  });
}

class Layer {
 public:
  FC_DEVICE Layer(const Launch& launch, const Block& block, Index index)
      : s_(launch), block_(block), index_(index) {}

  FC_DEVICE const Tables& tables() const { return s_.tables; }
  FC_DEVICE const Geometry& geometry() const { return s_.geometry; }
  FC_DEVICE byte* address(Amount rank, Amount buffer) const {
    return s_.addresses[rank * addresses_each + buffer];
  }
  FC_DEVICE bool aborted() const { return stopped_; }
  FC_DEVICE void report(const Position& at) {
    at_ = at;
    if (thread() == 0) store_relaxed(&s_.ticks[index_], ++ticks_);
  }

  FC_DEVICE bool reached(Index block, Count progress) {
    const Count* value = s_.progress[block];
    return await(Awaits::dependency, block, progress,
                 [&] { return is_there(value, progress); });
  }

  FC_DEVICE bool can_send() {
    const Count slots = s_.slot_count;
    const Count* taken = s_.taken[block_.outgoing];
    return await(Awaits::slot, block_.outgoing, sent_ + 1 - slots,
                 [&] { return sent_ < slots || is_there(taken, sent_ + 1 - slots); });
  }

  FC_DEVICE bool can_receive(byte*, const byte*, Amount bytes) {
    const Count* posted = s_.posted[block_.incoming];
    if (!await(Awaits::message, block_.incoming, received_ + 1,
               [&] { return is_there(posted, received_ + 1); }))
      return false;
    const Amount* sizes = s_.sizes[block_.incoming];
    const Amount found = sizes ? sizes[slot_of(received_)] : bytes;
    if (found == bytes) return true;
    if (thread() == 0) {
      describe(Awaits::message, block_.incoming, bytes, found);
      s_.stops[index_].mismatch = 1;
    }
    stopped_ = true;  // every thread has seen the same size
    return false;
  }

  FC_DEVICE byte* outgoing_slot() const { return slot(block_.outgoing, sent_); }

  FC_DEVICE void deliver(const byte* source, Amount bytes) {
    byte* const memory = outgoing_slot();
    copy(memory, source, bytes);
    if (thread() == 0) {
      if (Amount* const sizes = s_.sizes[block_.outgoing]) {
        sizes[slot_of(sent_)] = bytes;
        publish(s_.posted[block_.outgoing], sent_ + 1);
      } else {
        post(Number::posted, block_.outgoing, memory, nullptr, bytes);
      }
    }
    ++sent_;
  }

  FC_DEVICE void take(byte* target, const byte* operand, Amount bytes) {
    const byte* message = slot(block_.incoming, received_);
    if (operand) {
      const byte* both[2] = {message, operand};
      combine(target, both, 2, bytes);
    } else {
      copy(target, message, bytes);
    }
    if (thread() == 0) {
      if (Count* const taken = s_.taken[block_.incoming])
        publish(taken, received_ + 1);
      else
        post(Number::taken, block_.incoming);
    }
    ++received_;
  }

  FC_DEVICE void complete(Count progress) {
    sync();
    if (thread() == 0) publish(s_.progress[block_number()], progress);
  }

  FC_DEVICE void signal(Index index) {
    sync();
    if (thread() != 0) return;
    Count* const value = s_.semaphores[index];
    if (!value) return post(Number::raised, index);
    __threadfence_system();
    fetch_add(value, 1);
  }

  FC_DEVICE bool acquire(Index index) {
    Count* value = s_.semaphores[index];
    const Count* raised = s_.far.rings ? s_.raised[index] : nullptr;
    return await(Awaits::semaphore, index, 1, [&] {
      if (raised) credit(value, raised);
      const Count present = load_relaxed(value);
      return present > 0 && exchange_if(value, present, present - 1);  // acquires
    });
  }

  // Only thread 0 knows its ticket; only thread 0 asks whether it has been passed.
  FC_DEVICE Count arrive(Index index, Index group) {
    sync();
    if (thread() != 0) return 0;
    const Count size = group;
    __threadfence_system();
    return (fetch_add(s_.arrived[index], 1) / size + 1) * size;
  }

  // What blocks of this GPU have put elsewhere has been read. Within a node it is there at once.
  FC_DEVICE bool drained() {
    return await(Awaits::puts, block_.rank, 0, [&] {
      for (Index k = 0; k < static_cast<Index>(gridDim.x); ++k)
        if (!is_there(&s_.far.rings[k].completed, load_acquire(&s_.rung[1 + k]))) return false;
      return true;
    });
  }
  FC_DEVICE bool fetched(const byte*, Amount) { return true; }  // nothing is read from other nodes

  FC_DEVICE bool passed(Index index, Count ticket) {
    const Count* arrived = s_.arrived[index];
    return await(Awaits::barrier, index, ticket,
                 [&] { return is_there(arrived, ticket); });
  }

  // Every thread waits for the packets that it will read: data and number are one word.
  FC_DEVICE bool arrived(Amount rank, const byte* packets, Amount bytes) {
    bool failed = false;
    for (Amount i = thread(); i < bytes / packet_data && !failed; i += threads())
      failed = !spin(Awaits::packets, rank, s_.number,
                     [&] { return load_relaxed(word(packets, i)) >> 32 == s_.number; });
    stopped_ = __syncthreads_or(failed);
    return !stopped_;
  }

  FC_DEVICE void pack(Amount, byte* packets, const byte* source, Amount bytes) {
    make_packets(packets, bytes, [&](Amount i) {
      return reinterpret_cast<const std::uint32_t*>(source)[i];
    });
  }

  FC_DEVICE void forward(Amount, byte* packets, const byte* source, Amount bytes) {
    make_packets(packets, bytes, [&](Amount i) { return load_relaxed(word(source, i)); });
  }

  FC_DEVICE void unpack(byte* target, const byte* packets, Amount bytes) {
    for (Amount i = thread(); i < bytes / packet_data; i += threads())
      reinterpret_cast<std::uint32_t*>(target)[i] =
          load_relaxed(word(packets, i));
    sync();
  }

  // Sixteen bytes of data at a time: packets are cut in multiples of that, whatever the element.
  FC_DEVICE void combine_packets(byte* target, const byte* const* packets, int n, const byte* own,
                                 Amount bytes) {
    dispatch([&](auto combine_two) {
      combine_packets_by(combine_two, target, packets, n, own, bytes / 16);
    });
    sync();
  }

  FC_DEVICE void copy(byte* target, const byte* source, Amount bytes) {
    if (is_far(target)) {
      for (Amount done = 0; thread() == 0 && done < bytes; done += piece)
        post(Number::none, 0, source + done, target + done, at_most(piece, bytes - done));
      return;
    }
    if (target != source) copy_words(target, source, bytes);
    sync();
  }

  // A thread reads all that goes into an element before it writes it: the target may be a source.
  FC_DEVICE void combine(byte* target, const byte* const* sources, int n, Amount bytes) {
    dispatch([&](auto combine_two) { combine_by(combine_two, target, sources, n, bytes); });
    sync();
  }

  FC_DEVICE void finish() {
    if (thread() == 0) s_.stops[index_].finished = 1;
  }

 private:
  static constexpr Amount packet_data = 4;
  static constexpr std::uint32_t turns_between_looks = 1u << 10;   // at the host's memory
  static constexpr std::uint32_t turns_until_described = 1u << 16;

  static FC_DEVICE Amount thread() { return threadIdx.x; }
  static FC_DEVICE Amount threads() { return blockDim.x; }
  static FC_DEVICE void sync() { __syncthreads(); }

  static FC_DEVICE std::uintptr_t bits(const byte* at) {
    return reinterpret_cast<std::uintptr_t>(at);
  }

  // Whether a number that only grows has come so far; acquires if so. It is the plain look that is
  // repeated: acquiring may throw away a cache, which other thread blocks use as well.
  static FC_DEVICE bool is_there(const Count* value, Count wanted) {
    return load_relaxed(value) >= wanted && load_acquire(value) >= wanted;
  }

  // Bytes before the first whole `Word`, at most `bytes`.
  template <class Word>
  static FC_DEVICE Amount until_aligned(const byte* at, Amount bytes) {
    return at_most((0 - bits(at)) % sizeof(Word), bytes);
  }

  static FC_APART void copy_words(byte* target, const byte* source, Amount bytes) {
    const auto apart = bits(target) ^ bits(source);
    const auto copy_as = [&](auto word) {
      combine_words<decltype(word)>(First{}, target, &source, 1, bytes, true);
    };
    if (apart % 16 == 0) return copy_as(Vector{});
    if (apart % 4 == 0) return copy_as(std::uint32_t{});
    if (apart % 2 == 0) return copy_as(std::uint16_t{});
    copy_as(byte{});
  }

  template <class Combine>
  static FC_APART void combine_by(Combine combine_two, byte* target, const byte* const* sources,
                                  int n, Amount bytes) {
    bool alike = true;
    for (int i = 0; i < n; ++i) alike = alike && (bits(target) ^ bits(sources[i])) % 16 == 0;
    combine_words<Vector>(combine_two, target, sources, n, bytes, alike);
  }

  // In words, for addresses that are as far from a word's boundary (else not `in_words`), and in single
  // elements at both ends.
  template <class Word, class Combine>
  static FC_DEVICE void combine_words(Combine combine_two, byte* target, const byte* const* sources, int n,
                                      Amount bytes, bool in_words) {
    constexpr Amount size = sizeof(Word);
    const Amount head = in_words ? until_aligned<Word>(target, bytes) : bytes;
    const Amount tail = head + (bytes - head) / size * size;
    combine_elements_by(combine_two, target, sources, n, 0, head);
    combine_words_by<Word>(combine_two, target, sources, n, head, (tail - head) / size);
    combine_elements_by(combine_two, target, sources, n, tail, bytes);
  }

  template <class Combine>
  static FC_APART void combine_packets_by(Combine combine_two, byte* target,
                                          const byte* const* packets, int n, const byte* own,
                                          Amount vectors) {
    for (Amount i = thread(); i < vectors; i += threads()) {
      const Vector mine = reinterpret_cast<const Vector*>(own)[i];
      Vector sum = n ? read_packets(packets[0], i) : mine;
      for (int k = 1; k < n; ++k) sum = combine_two(sum, read_packets(packets[k], i));
      reinterpret_cast<Vector*>(target)[i] = n ? combine_two(sum, mine) : sum;
    }
  }

  // `count` words from byte `begin` on. Four loads of each source are under way before the first store:
  // latency to another GPU is long.
  template <class Word, class Combine>
  static FC_DEVICE void combine_words_by(Combine combine_two, byte* target,
                                         const byte* const* sources, int n,
                                         Amount begin, Amount count) {
    constexpr int unroll = 4;
    const Amount step = threads();
    const auto at = [&](int k) { return reinterpret_cast<const Word*>(sources[k] + begin); };
    auto* const to = reinterpret_cast<Word*>(target + begin);
    Amount i = thread();
    for (; i + (unroll - 1) * step < count; i += unroll * step) {
      Word sums[unroll], next[unroll];
      for (int u = 0; u < unroll; ++u) sums[u] = at(0)[i + u * step];
      for (int k = 1; k < n; ++k) {
        for (int u = 0; u < unroll; ++u) next[u] = at(k)[i + u * step];
        for (int u = 0; u < unroll; ++u) sums[u] = combine_two(sums[u], next[u]);
      }
      for (int u = 0; u < unroll; ++u) to[i + u * step] = sums[u];
    }
    for (; i < count; i += step) {
      Word sum = at(0)[i];
      for (int k = 1; k < n; ++k) sum = combine_two(sum, at(k)[i]);
      to[i] = sum;
    }
  }

  // Bytes [begin, end), element by element.
  template <class Combine>
  static FC_DEVICE void combine_elements_by(Combine combine_two, byte* target,
                                            const byte* const* sources, int n,
                                            Amount begin, Amount end) {
    using T = typename Combine::Element;
    constexpr Amount size = sizeof(T);
    for (Amount i = begin + thread() * size; i < end; i += threads() * size) {
      T sum = *reinterpret_cast<const T*>(sources[0] + i);
      for (int k = 1; k < n; ++k)
        sum = combine_two(sum, *reinterpret_cast<const T*>(sources[k] + i));
      *reinterpret_cast<T*>(target + i) = sum;
    }
  }

  FC_DEVICE bool is_far(const byte* target) const {
    return bits(target) - bits(s_.far.space) < s_.far.bytes;
  }

  // For thread 0: an entry in the ring, once there is room. All that the block wrote before belongs to it.
  FC_APART void post(Number number, Index object, const byte* own = nullptr, const byte* far = nullptr,
                     Amount bytes = 0) {
    Ring& ring = s_.far.rings[index_];
    if (!spin(Awaits::puts, block_.rank, 0, [&] { return has_left(posted_ + 1 - ring_entries); })) return;
    RingEntry& entry = ring.entries[posted_++ % ring_entries];
    entry.number = number;
    entry.object = object;
    entry.own = own;
    entry.far = far;
    const Count place = fetch_add(s_.rung, 1) + 1;
    __threadfence_system();
    store_release(&entry.last, bytes << 32 | (place & 0xffffffffu));
    store_release(&s_.rung[1 + index_], posted_);
  }

  // Whether so many entries of this block's have been read; looks at the host's memory if need be.
  FC_DEVICE bool has_left(Count entries) {
    if (Amount(entries - completed_) > 0) completed_ = load_acquire(&s_.far.rings[index_].completed);
    return Amount(entries - completed_) <= 0;
  }

  // Adds to a semaphore what other nodes have raised it by since; behind it stands how much that was.
  static FC_DEVICE void credit(Count* value, const Count* raised) {
    Count* const credited = value + 1;
    const Count before = load_relaxed(credited);
    if (load_relaxed(raised) == before) return;
    const Count now = load_acquire(raised);
    if (now > before && exchange_if(credited, before, now)) fetch_add(value, now - before);
  }

  // Packets with the words that `data` gives. Those for another node are made in memory of the block,
  // by turns in one half and in the other, which must have been read from before it is written again.
  template <class Data>
  FC_DEVICE void make_packets(byte* packets, Amount bytes, Data data) {
    const bool far = is_far(packets);
    const Amount words = bytes / packet_data, each = far ? packets_made / 16 : words;
    for (Amount begin = 0; begin < words && !stopped_; begin += each) {
      const Amount n = at_most(each, words - begin);
      byte* to = packets;
      if (far) {
        Count& last = made_[half_ ^= 1];
        if (!await(Awaits::puts, block_.rank, 0, [&] { return has_left(last); })) return;
        to = s_.far.made + (2 * index_ + half_) * packets_made / 2;
      }
      for (Amount i = thread(); i < n; i += threads()) write_packet(to, i, data(begin + i));
      sync();
      if (far && thread() == 0) {
        post(Number::packets, 0, to, packets + 8 * begin, 8 * n);
        made_[half_] = posted_;
      }
    }
  }

  static FC_DEVICE const Count* word(const byte* packets, Amount i) {
    return reinterpret_cast<const Count*>(packets) + i;
  }

  FC_DEVICE void write_packet(byte* packets, Amount i, std::uint32_t data) const {
    store_relaxed(reinterpret_cast<Count*>(packets) + i,
                  std::uint64_t{s_.number} << 32 | data);
  }

  static FC_DEVICE Vector read_packets(const byte* packets, Amount vector) {
    std::uint64_t data[4];
    for (int k = 0; k < 4; ++k) data[k] = load_relaxed(word(packets, 4 * vector + k)) & 0xffffffffu;
    return {data[0] | data[1] << 32, data[2] | data[3] << 32};
  }

  FC_DEVICE Amount slot_of(Count message) const {
    return message % s_.slot_count;
  }
  FC_DEVICE byte* slot(Index connection, Count message) const {
    return s_.slots[connection] + slot_of(message) * s_.slot_bytes;
  }

  FC_DEVICE Index block_number() const { return s_.mine[index_]; }

  static FC_DEVICE void publish(Count* value, Count number) {
    __threadfence_system();
    store_release(value, number);
  }

  FC_DEVICE void describe(Awaits kind, Index object, Amount wanted,
                          Amount present) {
    Stop& stop = s_.stops[index_];
    stop.block = block_number();
    stop.pc = at_.pc;
    stop.slice = at_.slice;
    stop.round = at_.round;
    stop.piece = at_.piece;
    stop.object = object;
    stop.wanted = wanted;
    stop.present = present;
    stop.awaits = static_cast<Amount>(kind);
  }

  // One thread's wait; false: the launch is given up.
  template <class Ready>
  FC_DEVICE bool spin(Awaits kind, Index object, Amount wanted, Ready ready) {
    std::uint32_t turns = 0;
    bool described = false;
    while (!ready()) {
      if (++turns % turns_between_looks) continue;
#if !defined(__CUDACC__) && !defined(__HIPCC__)
      yield_to_others();
#endif
      const bool last = *s_.abort != 0;
      if (last || turns == turns_until_described) {
        describe(kind, object, wanted, 0);
        described = true;
      }
      if (last) return false;
    }
    if (described) s_.stops[index_].awaits = static_cast<Amount>(Awaits::nothing);
    return true;
  }

  template <class Ready>
  FC_DEVICE bool await(Awaits kind, Index object, Amount wanted, Ready ready) {
    const bool failed = thread() == 0 && !spin(kind, object, wanted, ready);
    stopped_ = __syncthreads_or(failed);
    return !stopped_;
  }

  // `use` with the function that combines two vectors of the launch's type and operation.
  template <class Use>
  FC_DEVICE void dispatch(Use use) const {
    with_type(static_cast<Type>(s_.type), [&](auto zero) {
      with_reduction(static_cast<Reduction>(s_.op), [&](auto chosen) {
        use(CombineVectors<decltype(chosen)::op, decltype(zero)>{});
      });
    });
  }

  const Launch& s_;
  const Block& block_;
  const Index index_;
  Position at_{};
  Count sent_ = 0, received_ = 0, ticks_ = 0;
  Count posted_ = 0, completed_ = 0;  // entries of the ring; thread 0's
  Count made_[2] = {0, 0};            // the entry with which each half was put last
  int half_ = 0;
  bool stopped_ = false;
};

}  // namespace forestcoll::gpu
