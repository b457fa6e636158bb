// The wire over UCX (active messages of UCP): RDMA, shared memory and TCP, as it finds them. Compiled
// on first use, against the headers that are there, and loaded beside the library itself (ucx.py).
//
// One thread has the worker to itself: it sends what was posted, and makes progress all the time,
// because even what the peer writes by itself is often answered by this end's software. Messages of
// different lengths may overtake each other, so each bears a number, and effects count in that order.

#include <ucp/api/ucp.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "wire.hpp"

namespace forestcoll {
namespace {

// Goes before the bytes of an effect: of which process, and which of its messages to this one.
struct Envelope {
  Header header;
  std::int64_t process, sequence;
};

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) throw std::runtime_error(std::string(what) + ": " + ucs_status_string(status));
}

class Ucx : public Wire {
 public:
  Ucx(int processes, int self, const Arena& arena)
      : Wire(processes), arena_(arena), self_(self), ends_(processes), next_(processes) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | (arena_.reads_back ? UCP_FEATURE_RMA : 0);
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "no configuration of UCX");
    // What is read back has to come by the network: not by ways within a machine.
    if (arena_.reads_back && !std::getenv("UCX_TLS")) ucp_config_modify(config, "TLS", "^self,shm");
    const ucs_status_t status = ucp_init(&params, config, &context_);
    ucp_config_release(config);
    check(status, "no context of UCX");
    ucp_context_attr_t known{};
    known.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
    check(ucp_context_query(context_, &known), "no kinds of memory of UCX");
    reaches = known.memory_types >> arena_.kind & 1;
    if (!reaches) arena_ = {};
    ucp_worker_params_t own{};
    own.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    own.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(ucp_worker_create(context_, &own, &worker_), "no worker of UCX");
    ucp_am_handler_param_t handler{};
    handler.field_mask =
        UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = 0;
    handler.cb = &Ucx::on_message;
    handler.arg = this;
    check(ucp_worker_set_am_recv_handler(worker_, &handler), "no active messages of UCX");
    ucp_address_t* bytes = nullptr;
    std::size_t length = 0;
    check(ucp_worker_get_address(worker_, &bytes, &length), "no address of UCX");
    address.assign(reinterpret_cast<const char*>(bytes), length);
    ucp_worker_release_address(worker_, bytes);
  }

  ~Ucx() override {
    ending_.store(true);
    if (thread_.joinable()) thread_.join();
    if (key_) ucp_rkey_destroy(key_);
    for (const auto end : ends_)
      if (end) close(end);
    if (registered_) ucp_mem_unmap(context_, registered_);
    if (worker_) ucp_worker_destroy(worker_);
    if (context_) ucp_cleanup(context_);
  }

 private:
  // Nothing arrives before.
  void start(const std::vector<std::string>& addresses) override {
    for (int peer = 0; peer < processes(); ++peer) {
      if (peer == self_ && !arena_.reads_back) continue;
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
      if (peer != self_)
        params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
      params.address = reinterpret_cast<const ucp_address_t*>(addresses[peer].data());
      params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
      params.err_handler = {&Ucx::on_error, this};
      check(ucp_ep_create(worker_, &params, &ends_[peer]), "no connection of UCX");
    }
    if (arena_.reads_back) open_arena();
    thread_ = std::thread([this] { run(); });
  }

  void send(int peer, Effect effect) override {
    const std::lock_guard lock(posting_);
    posted_.emplace_back(peer, std::move(effect));
  }

  // A message that leaves, or one that arrives in parts.
  struct Transfer {
    Ucx* wire;
    int peer;
    Effect effect;
    Envelope envelope;
    std::vector<byte> packets;
  };
  struct Peer {
    std::int64_t sent = 0, arrived = 0;  // messages; those that have had their effect
    std::map<std::int64_t, Effect> early;  // their bytes are here, but not those before them
  };

  // The way back to this process's own arena.
  void open_arena() {
    ucp_mem_map_params_t params{};
    params.field_mask =
        UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    params.address = arena_.start;
    params.length = arena_.bytes;
    params.memory_type = static_cast<ucs_memory_type_t>(arena_.kind);
    check(ucp_mem_map(context_, &params, &registered_), "UCX does not register the arena");
    void* key = nullptr;
    std::size_t length = 0;
    check(ucp_rkey_pack(context_, registered_, &key, &length), "no key of UCX");
    check(ucp_ep_rkey_unpack(ends_[self_], key, &key_), "no way back of UCX");
    ucp_rkey_buffer_release(key);
  }

  // Reads a word of the arena by the way that data came, behind which all of them are there.
  void read_back() {
    std::uint64_t word;
    ucp_request_param_t param{};
    const ucs_status_ptr_t request = ucp_get_nbx(
        ends_[self_], &word, sizeof word, reinterpret_cast<std::uintptr_t>(arena_.start), key_, &param);
    ucs_status_t status = UCS_PTR_STATUS(request);
    while (UCS_PTR_IS_PTR(request) && (status = ucp_request_check_status(request)) == UCS_INPROGRESS &&
           !ending_)
      ucp_worker_progress(worker_);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    if (status != UCS_OK) fail(self_, ucs_status_string(status));
  }

  void run() {
    std::deque<std::pair<int, Effect>> mine;
    for (Pause pause; !ending_.load();) {
      {
        const std::lock_guard lock(posting_);
        mine.swap(posted_);
      }
      const bool busy = !mine.empty();
      for (auto& [peer, effect] : mine) pass_on(peer, std::move(effect));
      mine.clear();
      pause.turn(ucp_worker_progress(worker_) || busy);
      if (here_.empty()) continue;
      std::deque<std::pair<int, Effect>> now;
      now.swap(here_);
      read_back();
      for (const auto& [peer, effect] : now) tell(peer, effect);
    }
  }

  void pass_on(int peer, Effect effect) {
    auto* const transfer = new Transfer{this, peer, std::move(effect), {}, {}};
    const Effect& e = transfer->effect;
    transfer->envelope = {e, self_, next_[peer].sent++};
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = &Ucx::on_sent;
    param.user_data = transfer;
    if (arena_.kind && e.bytes) {  // the processor cannot store what comes with its message
      param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_AM_SEND_FLAG_RNDV;
    }
    settle(transfer, ucp_am_send_nbx(ends_[peer], 0, &transfer->envelope, sizeof(Envelope), e.source,
                                     e.bytes, &param));
  }

  // What has been done at once calls nobody back.
  void settle(Transfer* transfer, ucs_status_ptr_t request) {
    if (request == nullptr || UCS_PTR_IS_ERR(request)) finish(transfer, UCS_PTR_STATUS(request));
  }

  void finish(Transfer* transfer, ucs_status_t status) {
    const std::unique_ptr<Transfer> one(transfer);
    if (status != UCS_OK) return fail(one->peer, ucs_status_string(status));
    if (one->envelope.process == self_) return has_left(one->effect);
    if (!one->packets.empty()) store_words(one->effect.target, one->packets.data(), one->effect.bytes);
    arrive(one->peer, one->envelope.sequence, one->effect);
  }

  static void on_received(void* request, ucs_status_t status, std::size_t, void* data) {
    auto* const transfer = static_cast<Transfer*>(data);
    transfer->wire->finish(transfer, status);
    ucp_request_free(request);
  }

  static void on_sent(void* request, ucs_status_t status, void* data) {
    on_received(request, status, 0, data);
  }

  static void on_error(void* self, ucp_ep_h end, ucs_status_t status) {
    auto& wire = *static_cast<Ucx*>(self);
    for (int peer = 0; peer < wire.processes(); ++peer)
      if (wire.ends_[peer] == end) wire.fail(peer, ucs_status_string(status));
  }

  static ucs_status_t on_message(void* self, const void* header, std::size_t length, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* how) {
    return static_cast<Ucx*>(self)->receive(header, length, data, bytes, *how);
  }

  ucs_status_t receive(const void* header, std::size_t length, void* data, std::size_t bytes,
                       const ucp_am_recv_param_t& how) {
    Envelope said;
    if (length != sizeof said) return UCS_OK;  // a stranger's
    std::memcpy(&said, header, sizeof said);
    if (said.process < 0 || said.process >= processes() || said.process == self_) return UCS_OK;
    Effect effect{said.header};
    const int peer = said.process;
    const bool packets = effect.number == Number::packets;
    byte* const target = effect.target = effect.bytes ? receiver_->place(peer, effect) : nullptr;
    if (static_cast<Amount>(bytes) != effect.bytes || (effect.bytes && !target)) {
      fail(peer, nonsense);
      return UCS_OK;
    }
    if (!(how.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
      if (packets)
        store_words(target, static_cast<const byte*>(data), effect.bytes);
      else if (effect.bytes)
        std::memcpy(target, data, effect.bytes);
      arrive(peer, said.sequence, effect);
      return UCS_OK;
    }
    auto* const transfer = new Transfer{this, peer, effect, said, {}};
    if (packets) transfer->packets.resize(effect.bytes);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.recv_am = &Ucx::on_received;
    param.user_data = transfer;
    settle(transfer, ucp_am_recv_data_nbx(worker_, data, packets ? transfer->packets.data() : target,
                                          effect.bytes, &param));
    return UCS_INPROGRESS;
  }

  // The bytes of a message are here; it has its effect after all that were sent before it.
  void arrive(int peer, std::int64_t sequence, const Effect& effect) {
    Peer& one = next_[peer];
    one.early.emplace(sequence, effect);
    for (auto first = one.early.begin(); first != one.early.end() && first->first == one.arrived;
         first = one.early.erase(first)) {
      ++one.arrived;
      if (arena_.reads_back)
        here_.emplace_back(peer, first->second);
      else
        tell(peer, first->second);
    }
  }

  void tell(int peer, const Effect& effect) {
    if (!has_arrived(peer, effect)) fail(peer, nonsense);
  }

  void close(ucp_ep_h end) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(end, &param);
    if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_);
    ucp_request_free(request);
  }

  Arena arena_;
  const int self_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h registered_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  std::deque<std::pair<int, Effect>> here_;  // arrived, but not yet read back
  std::vector<ucp_ep_h> ends_;
  std::vector<Peer> next_;
  std::mutex posting_;
  std::deque<std::pair<int, Effect>> posted_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace

extern "C" Wire* forestcoll_open(int processes, int self, const Arena& arena) {
  return new Ucx(processes, self, arena);
}

}  // namespace forestcoll
