// The wire over stream sockets. Whoever posts writes as much as the socket takes at once; the rest,
// and all that comes, is the business of one thread.

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "wire.hpp"

namespace forestcoll {

namespace {

constexpr std::size_t together = 16;  // effects written at once
constexpr std::size_t staged = 1 << 16;  // bytes read at once; larger payloads go straight to their place

// A peer's end: what is still to be written, and what has been read.
struct Peer {
  int descriptor = -1;
  std::mutex mutex;          // for `waiting` and `written`
  std::deque<Effect> waiting;
  Amount written = 0;        // bytes of the first one, header included
  std::vector<byte> buffer;  // read, not yet handled: [begin, end)
  std::size_t begin = 0, end = 0;
  Header header{};        // of the effect that is being read
  byte* place = nullptr;  // where its payload belongs, once the header is whole
  byte* target = reinterpret_cast<byte*>(&header);  // where the next byte of either goes
  Amount missing = sizeof(Header);                  // bytes of it that are yet to come
  std::vector<byte> packets;
  bool closed = false;
};

class Sockets : public Wire {
 public:
  explicit Sockets(const std::vector<int>& descriptors)
      : Wire(descriptors.size()), peers_(descriptors.size()), bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      peers_[i].descriptor = descriptors[i];
      peers_[i].buffer.resize(staged);
    }
  }

  ~Sockets() override {
    ending_.store(true);
    ring();
    if (thread_.joinable()) thread_.join();
    for (const Peer& peer : peers_)
      if (peer.descriptor >= 0) close(peer.descriptor);
    close(bell_);
  }

 private:
  void start(const std::vector<std::string>&) override {
    thread_ = std::thread([this] { run(); });
  }

  void send(int number, Effect effect) override {
    Peer& peer = peers_[number];
    const std::lock_guard lock(peer.mutex);
    peer.waiting.push_back(std::move(effect));
    if (peer.waiting.size() == 1 && !write(number)) ring();
  }

  void ring() {
    const std::uint64_t one = 1;
    (void)!::write(bell_, &one, sizeof one);
  }

  // With the peer's mutex. Writes what the socket takes, several effects at once; false: there is
  // more. Bytes without a number wait for one (200 ms at most), so that they share its packet.
  bool write(int number) {
    Peer& peer = peers_[number];
    while (!peer.waiting.empty()) {
      const std::size_t n = std::min(peer.waiting.size(), together);
      Header headers[together];
      iovec parts[2 * together];
      int used = 0;
      Amount skip = peer.written;
      const auto add = [&](const void* bytes, Amount length) {
        const Amount done = std::min(skip, length);
        skip -= done;
        if (done < length)
          parts[used++] = {static_cast<byte*>(const_cast<void*>(bytes)) + done,
                           static_cast<std::size_t>(length - done)};
      };
      for (std::size_t i = 0; i < n; ++i) {
        headers[i] = peer.waiting[i];
        add(&headers[i], sizeof(Header));
        add(peer.waiting[i].source, peer.waiting[i].bytes);
      }
      const bool more = n < peer.waiting.size() || peer.waiting.back().number == Number::none;
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = used;
      const int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0);
      const ssize_t sent = sendmsg(peer.descriptor, &message, flags);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return false;
      if (sent < 0) {
        fail(number, std::strerror(errno));
        return true;  // nothing more will leave
      }
      peer.written += sent;
      while (!peer.waiting.empty()) {
        const Amount length = Amount{sizeof(Header)} + peer.waiting.front().bytes;
        if (peer.written < length) break;
        peer.written -= length;
        has_left(peer.waiting.front());
        peer.waiting.pop_front();
      }
    }
    return true;
  }

  void run() {
    std::vector<pollfd> waits(peers_.size() + 1);
    while (!ending_.load()) {
      waits.back() = {bell_, POLLIN, 0};
      for (std::size_t i = 0; i < peers_.size(); ++i) {
        const std::lock_guard lock(peers_[i].mutex);
        const short writes = peers_[i].waiting.empty() ? 0 : POLLOUT;
        waits[i] = {peers_[i].closed ? -1 : peers_[i].descriptor,
                    static_cast<short>(POLLIN | writes), 0};
      }
      if (poll(waits.data(), waits.size(), -1) < 0) continue;
      std::uint64_t rung;
      if (waits.back().revents) (void)!::read(bell_, &rung, sizeof rung);
      for (std::size_t i = 0; i < peers_.size(); ++i) {
        if (waits[i].revents & POLLOUT) {
          const std::lock_guard lock(peers_[i].mutex);
          write(i);
        }
        if (waits[i].revents & (POLLIN | POLLHUP | POLLERR)) read(i);
      }
    }
  }

  // Reads what is there; an end of the stream, or nonsense, closes the peer.
  void read(int number) {
    Peer& peer = peers_[number];
    for (int turns = 0; turns < 16; ++turns) {  // then the others have their turn
      const bool straight = peer.missing >= Amount{staged} && peer.begin == peer.end;
      byte* const into = straight ? peer.target : peer.buffer.data();
      const std::size_t room = straight ? peer.missing : staged;
      const ssize_t got = recv(peer.descriptor, into, room, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return close_peer(number, got ? std::strerror(errno) : "it closed the connection");
      if (straight) {
        if (!advance(number, got)) return close_peer(number, nonsense);
        continue;
      }
      peer.begin = 0;
      peer.end = got;
      if (!handle(number)) return close_peer(number, nonsense);
      if (static_cast<std::size_t>(got) < room) return;
    }
  }

  // Takes all headers and payloads out of the buffer.
  bool handle(int number) {
    Peer& peer = peers_[number];
    while (peer.begin < peer.end) {
      const Amount n = std::min<Amount>(peer.missing, peer.end - peer.begin);
      std::memcpy(peer.target, peer.buffer.data() + peer.begin, n);
      peer.begin += n;
      if (!advance(number, n)) return false;
    }
    return true;
  }

  // So many bytes more are where they belong.
  bool advance(int number, Amount n) {
    Peer& peer = peers_[number];
    peer.target += n;
    peer.missing -= n;
    return peer.missing || (peer.place ? finish(number) : begin(number));
  }

  // The header is whole.
  bool begin(int number) {
    Peer& peer = peers_[number];
    const Effect effect{peer.header};
    if (effect.bytes == 0) return finish(number);
    peer.missing = effect.bytes;
    peer.target = peer.place = receiver_->place(number, effect);
    if (!peer.place) return false;
    if (effect.number == Number::packets) {
      peer.packets.resize(effect.bytes);
      peer.target = peer.packets.data();
    }
    return true;
  }

  // All bytes of the effect are there.
  bool finish(int number) {
    Peer& peer = peers_[number];
    Effect effect{peer.header};
    effect.target = std::exchange(peer.place, nullptr);
    if (effect.number == Number::packets && effect.bytes)
      store_words(effect.target, peer.packets.data(), effect.bytes);
    peer.target = reinterpret_cast<byte*>(&peer.header);
    peer.missing = sizeof(Header);
    return has_arrived(number, effect);
  }

  void close_peer(int number, const char* why) {
    fail(number, why);
    peers_[number].closed = true;
  }

  std::vector<Peer> peers_;
  const int bell_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Wire> make_sockets(const std::vector<int>& descriptors) {
  return std::make_unique<Sockets>(descriptors);
}

}  // namespace forestcoll
