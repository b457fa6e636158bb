// Random puts over one kind of wire between ends of this process, each of whose rules is checked:
//
//   wire_probe WIRE ENDS PUTS CREDIT BYTES SEED early|right [LIBRARY...]
//
// WIRE is sockets, unkind, lazy or loaded (of the libraries). Every end puts PUTS times to others drawn
// by chance, into CREDIT places of at most BYTES bytes each that are its own there; a place is used again
// once the peer has said that it has read it. `early` breaks a rule: numbers go before their bytes.
// Prints `wrong W left L of P`: places with other bytes than were put when their number came.

#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>

#include "wire.hpp"

using namespace forestcoll;

extern "C" void* unkind_exchange(int processes, std::uint64_t seed, bool lazy);  // unkind.cpp
extern "C" void unkind_close(void* exchange);

namespace {

int ends, credit;
Amount bytes;
bool early;
std::atomic<Count> wrong{0}, lefts{0}, posts{0};

struct Put {
  Count number;
  int slot;
  Amount bytes;
};

// What one end has under way to another one.
struct Pair {
  std::mutex mutex;
  std::vector<int> open;         // slots that may be written
  std::deque<Put> puts;          // not yet read there
  Count number = 0, heard = 0;   // of the last put; up to where the reader has looked
  std::unique_ptr<byte[]> sources;
  std::unique_ptr<std::atomic<bool>[]> read;  // per slot: its source may be written
};

std::vector<std::vector<Pair>> pairs;  // from, to

// Who spins takes the processor from the wire that it waits for.
void rest_a_little() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

std::uint64_t word(int from, int to, Count number, Amount at) {
  return (number * 2654435761u + from * 97 + to) * 0x9E3779B97F4A7C15u + at;
}

struct End : Receiver {
  int self;
  std::unique_ptr<byte[]> arena;
  std::unique_ptr<Wire> wire;

  void post(int to, Effect effect) {
    posts.fetch_add(1);
    wire->post(to, std::move(effect));
  }
  byte* place(int, const Effect& e) override {
    return e.place < 0 || e.place + e.bytes > ends * credit * bytes ? nullptr : arena.get() + e.place;
  }
  bool arrived(int peer, const Effect& e) override {
    if (e.number == Number::taken) {
      Pair& p = pairs[self][peer];
      const std::lock_guard lock(p.mutex);
      for (; !p.puts.empty() && p.puts.front().number <= e.value; p.puts.pop_front())
        p.open.push_back(p.puts.front().slot);
      return true;
    }
    Pair& p = pairs[peer][self];
    {
      const std::lock_guard lock(p.mutex);
      if (e.value <= p.heard) return true;  // the larger one has overtaken it
      for (const Put& put : p.puts) {
        if (put.number <= p.heard || put.number > e.value) continue;
        const byte* const at = arena.get() + (peer * credit + put.slot) * bytes;
        for (Amount i = 0; i < put.bytes; i += 8) {
          std::uint64_t there;
          std::memcpy(&there, at + i, 8);
          if (there == word(peer, self, put.number, i)) continue;
          wrong.fetch_add(1);
          break;
        }
      }
      p.heard = e.value;
    }
    post(peer, {{Number::taken, 0, e.value}});
    return true;
  }
  void left(const Effect& e) override {
    lefts.fetch_add(1);
    if (e.rank < 0) return;
    Pair& p = pairs[self][e.rank];
    const Amount slot = (e.source - p.sources.get()) / bytes;
    std::memset(p.sources.get() + slot * bytes, 0xEE, e.bytes);
    p.read[slot].store(true);
  }

  void put(int to, std::mt19937_64& random) {
    Pair& p = pairs[self][to];
    int slot = -1;
    while (slot < 0) {
      std::unique_lock lock(p.mutex);
      if (p.open.empty()) {
        lock.unlock();
        rest_a_little();
        continue;
      }
      std::swap(p.open[random() % p.open.size()], p.open.back());
      slot = p.open.back();
      p.open.pop_back();
    }
    Effect e;
    e.place = (self * credit + slot) * bytes;
    e.bytes = random() % (bytes / 8 + 1) * 8;
    const bool packets = random() % 4 == 0, keeps = packets || random() % 2;
    byte* source = p.sources.get() + slot * bytes;
    if (keeps) e.kept.reset(source = new byte[e.bytes + 8]);
    while (!keeps && !p.read[slot].load()) rest_a_little();
    Count number;
    bool last;
    {
      const std::lock_guard lock(p.mutex);
      number = ++p.number;
      p.puts.push_back({number, slot, e.bytes});
      last = p.open.empty() || random() % 2;  // else a later number speaks for it
    }
    for (Amount i = 0; i < e.bytes; i += 8) {
      const std::uint64_t w = word(self, to, number, i);
      std::memcpy(source + i, &w, 8);
    }
    e.source = source;
    if (!keeps && e.bytes) {
      e.rank = to;
      p.read[slot].store(false);
    }
    if (last && early) post(to, {{Number::posted, 0, number}});
    if (packets || (last && !early)) {
      e.number = packets ? Number::packets : Number::posted;
      e.value = number;
    }
    post(to, std::move(e));
  }
};

std::vector<std::vector<int>> connected() {
  std::vector<std::vector<int>> all(ends, std::vector<int>(ends, -1));
  for (int a = 0; a < ends; ++a)
    for (int b = a + 1; b < ends; ++b) {
      int two[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, two)) std::abort();
      all[a][b] = two[0];
      all[b][a] = two[1];
    }
  return all;
}

}  // namespace

int main(int count, char** words) {
  const std::string kind = words[1];
  ends = std::atoi(words[2]);
  const int puts = std::atoi(words[3]);
  credit = std::atoi(words[4]);
  bytes = std::atoll(words[5]);
  const std::uint64_t seed = std::atoll(words[6]);
  early = words[7] == std::string("early");
  const std::vector<std::string> libraries(words + 8, words + count);
  pairs.resize(ends);
  std::vector<End> all(ends);
  for (int i = 0; i < ends; ++i) {
    pairs[i] = std::vector<Pair>(ends);
    all[i].self = i;
    all[i].arena.reset(new byte[ends * credit * bytes]);
    for (Pair& p : pairs[i]) {
      p.sources.reset(new byte[credit * bytes]);
      p.read.reset(new std::atomic<bool>[credit]);
      for (int slot = 0; slot < credit; ++slot) {
        p.open.push_back(slot);
        p.read[slot] = true;
      }
    }
  }
  const auto sockets = connected();
  void* const exchange = unkind_exchange(ends, seed, kind == "lazy");
  std::vector<std::string> addresses;
  for (int i = 0; i < ends; ++i) {
    if (kind == "loaded")
      all[i].wire = load_wire(libraries, ends, i, Arena{});
    else if (kind == "sockets")
      all[i].wire = make_sockets(sockets[i]);
    else
      all[i].wire.reset(forestcoll_open(ends, i, {static_cast<byte*>(exchange), 0, 0, 0}));
    addresses.push_back(all[i].wire->address);
  }
  std::vector<std::thread> starts;  // which wait for each other
  for (End& end : all) starts.emplace_back([&] { end.wire->begin(end, addresses); });
  for (std::thread& start : starts) start.join();
  std::vector<std::thread> threads;
  for (End& end : all)
    threads.emplace_back([&end, puts, seed] {
      std::mt19937_64 random(seed * 1000 + end.self);
      for (int i = 0; i < puts; ++i) {
        const int to = random() % (ends - 1);
        end.put(to + (to >= end.self), random);
      }
      for (int to = 0; to < ends; ++to) {  // a number for the last ones
        if (to == end.self) continue;
        end.post(to, {{Number::posted, 0, pairs[end.self][to].number}});
      }
    });
  for (std::thread& thread : threads) thread.join();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto rest = [&] {
    Count open = posts.load() - lefts.load();
    for (int from = 0; from < ends; ++from)
      for (int to = 0; to < ends; ++to) {
        if (from == to) continue;
        const std::lock_guard lock(pairs[from][to].mutex);
        open += pairs[from][to].puts.size();
        open += all[from].wire->sent()[to] - all[to].wire->received()[from];
      }
    return open;
  };
  while (rest() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (End& end : all) {
    int peer;
    const std::string why = end.wire->failure(peer);
    if (!why.empty()) std::printf("end %d: peer %d: %s\n", end.self, peer, why.c_str());
  }
  std::printf("wrong %ld left %ld of %ld, open %ld\n", static_cast<long>(wrong), static_cast<long>(lefts),
              static_cast<long>(posts), static_cast<long>(rest()));
  for (End& end : all) end.wire.reset();
  unkind_close(exchange);
}
