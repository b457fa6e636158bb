// A wire for tests, between engines of one process: as late and as disorderly as the rules of wire.hpp
// allow. Effects lie in an exchange until its thread delivers them, in random order, and it is then that
// their bytes are read. A library: the arena that `forestcoll_open` is given begins with the exchange.

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "wire.hpp"

namespace forestcoll {

// All that is under way between the processes of a test.
class Exchange {
 public:
  Exchange(int processes, std::uint64_t seed, bool lazy)
      : receivers_(processes), pending_(processes * processes), random_(seed), lazy_(lazy) {}
  ~Exchange() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    bell_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  struct End {
    Receiver* receiver = nullptr;
    std::function<void(const Effect&)> left;
    std::function<void(int, const Effect&)> arrived;
  };

  void join(int self, End end) {
    const std::lock_guard lock(mutex_);
    receivers_[self] = std::move(end);
    ++events_;
    bell_.notify_all();
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  void leave(int self) {  // what is under way to or from it is dropped
    std::unique_lock lock(mutex_);
    quiet_.wait(lock, [this] { return !delivering_; });
    receivers_[self] = {};
    for (int other = 0; other < processes(); ++other) {
      pending_[self * processes() + other].clear();
      pending_[other * processes() + self].clear();
    }
    ++events_;
  }
  void post(int from, int to, Effect effect) {
    {
      const std::lock_guard lock(mutex_);
      pending_[from * processes() + to].push_back({std::move(effect), false});
      ++events_;
    }
    bell_.notify_all();
  }
  int processes() const { return receivers_.size(); }

 private:
  struct Pending {
    Effect effect;
    bool put = false;  // its bytes are there, its number is not yet
  };
  struct Choice {
    int from, to;
    std::size_t at;
    bool number;
  };

  // Bytes may go at any time, a number once all before it has arrived.
  std::vector<Choice> choices() const {
    std::vector<Choice> all;
    for (int from = 0; from < processes(); ++from)
      for (int to = 0; to < processes(); ++to) {
        if (!receivers_[from].receiver || !receivers_[to].receiver) continue;
        const auto& list = pending_[from * processes() + to];
        bool ordered = true;
        for (std::size_t at = 0; at < list.size(); ++at) {
          const Pending& p = list[at];
          const bool bytes = p.effect.bytes && !p.put;
          if (bytes) all.push_back({from, to, at, false});
          if (!bytes && ordered) all.push_back({from, to, at, true});
          ordered = ordered && !bytes && p.effect.number == Number::none;
        }
      }
    return all;
  }

  void deliver(const Choice& c) {
    auto& list = pending_[c.from * processes() + c.to];
    Effect effect = list[c.at].effect;
    End &sender = receivers_[c.from], &receiver = receivers_[c.to];
    if (!c.number) {
      byte* const target = effect.target = receiver.receiver->place(c.from, effect);
      if (effect.number == Number::packets)
        store_words(target, effect.source, effect.bytes);
      else
        std::memcpy(target, effect.source, effect.bytes);
      list[c.at].put = true;
      list[c.at].effect.target = target;
      sender.left(effect);
      if (effect.number == Number::none) receiver.arrived(c.from, effect);
      return;
    }
    list.erase(list.begin() + c.at);
    if (!effect.bytes) sender.left(effect);
    if (effect.number != Number::none || !effect.bytes) receiver.arrived(c.from, effect);
  }

  // Lazy: as long as somebody posts, nothing is delivered; then one at a time.
  void run() {
    using namespace std::chrono_literals;
    std::unique_lock lock(mutex_);
    while (!ending_) {
      const Count seen = events_;
      const auto news = [&] { return ending_ || events_ != seen; };
      if (lazy_ && bell_.wait_for(lock, 300us, news)) continue;
      const std::vector<Choice> all = choices();
      if (all.empty()) {
        bell_.wait(lock, news);
        continue;
      }
      const Choice choice = all[random_() % all.size()];
      delivering_ = true;
      deliver(choice);
      delivering_ = false;
      quiet_.notify_all();
      if (!lazy_ && random_() % 4 == 0) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(random_() % 100));
        lock.lock();
      }
    }
  }

  std::recursive_mutex mutex_;  // who is told of an effect may post another one
  std::condition_variable_any bell_, quiet_;
  std::vector<End> receivers_;
  std::vector<std::vector<Pending>> pending_;  // from * processes + to, in the order of their posts
  std::mt19937_64 random_;
  const bool lazy_;
  bool ending_ = false, delivering_ = false;
  Count events_ = 0;  // posts, and ends that have come or gone
  std::thread thread_;
};

namespace {

class Unkind : public Wire {
 public:
  Unkind(std::shared_ptr<Exchange> exchange, int self)
      : Wire(exchange->processes()), exchange_(std::move(exchange)), self_(self) {
    reaches = true;
  }
  ~Unkind() override { exchange_->leave(self_); }

 private:
  void start(const std::vector<std::string>&) override {
    exchange_->join(self_, {receiver_, [this](const Effect& e) { has_left(e); },
                            [this](int peer, const Effect& e) { has_arrived(peer, e); }});
  }
  void send(int peer, Effect effect) override { exchange_->post(self_, peer, std::move(effect)); }

  std::shared_ptr<Exchange> exchange_;
  const int self_;
};

}  // namespace

#define FC_OPEN extern "C" __attribute__((visibility("default")))

// The exchange is there until it is closed and all its wires are gone.
FC_OPEN void* unkind_exchange(int processes, std::uint64_t seed, bool lazy) {
  return new std::shared_ptr<Exchange>(std::make_shared<Exchange>(processes, seed, lazy));
}
FC_OPEN void unkind_close(void* exchange) { delete static_cast<std::shared_ptr<Exchange>*>(exchange); }

FC_OPEN Wire* forestcoll_open(int, int self, const Arena& arena) {
  return new Unkind(*reinterpret_cast<std::shared_ptr<Exchange>*>(arena.start), self);
}

}  // namespace forestcoll
