// Maximum flow with a residual that stays: Dinic's algorithm on arcs that can be added, changed and
// reset, so that thousands of flows share one network and each starts from where the last one ended.
#pragma once

#include "graph.hpp"

namespace forestcoll {

// More than any real capacity (the callers keep total flows under 2^62).
inline constexpr Amount kInfinite = Amount{1} << 62;

class Residual {
 public:
  explicit Residual(int nodes) : first_(nodes, -1), level_(nodes), cursor_(nodes) {}

  // The arcs of a graph, arc e as number 2 e, and `more` nodes behind its own.
  explicit Residual(const Digraph& graph, int more = 0) : Residual(graph.nodes + more) {
    for (int e : graph.arcs()) add_arc(graph.tail[e], graph.head[e], graph.capacity[e]);
  }

  int nodes() const { return number_of(first_); }

  int add_node() {
    first_.push_back(-1);
    level_.push_back(0);
    cursor_.push_back(-1);
    return nodes() - 1;
  }

  // Arc u -> v; `e ^ 1` is its reverse. Its residual starts at its capacity.
  int add_arc(int u, int v, Amount capacity) {
    const int e = number_of(head_);
    link(u, v, capacity);
    link(v, u, 0);
    return e;
  }

  void set_capacity(int arc, Amount capacity) { base_[arc] = capacity; }

  // Forget all flow.
  void reset() { left_ = base_; }

  Amount left(int arc) const { return left_[arc]; }
  void set_left(int arc, Amount amount) { left_[arc] = amount; }

  // `units` more flow over an arc.
  void carry(int arc, Amount units) {
    left_[arc] -= units;
    left_[arc ^ 1] += units;
  }

  // Routes up to `limit` more units from `source` to `target`; returns how many found a way.
  Amount push(int source, int target, Amount limit) {
    thread_local unsigned phases = 0;
    Amount sent = 0;
    while (sent < limit && search(source, target)) {
      if ((++phases & 15) == 0) poll_signals();
      cursor_ = first_;
      sent += advance(source, target, limit - sent);
    }
    return sent;
  }

  // Which nodes `source` still reaches: the source side of a minimum cut after a push fell short.
  Marks reached(int source) {
    Marks inside(nodes(), 0);
    queue_.assign(1, source);
    inside[source] = 1;
    for (std::size_t i = 0; i < queue_.size(); ++i)
      for (int e = first_[queue_[i]]; e >= 0; e = next_[e])
        if (left_[e] > 0 && !inside[head_[e]]) {
          inside[head_[e]] = 1;
          queue_.push_back(head_[e]);
        }
    return inside;
  }

 private:
  void link(int u, int v, Amount capacity) {
    head_.push_back(v);
    base_.push_back(capacity);
    left_.push_back(capacity);
    next_.push_back(first_[u]);
    first_[u] = number_of(head_) - 1;
  }

  // Distances to `target`, found from there: the sink side of a tight cut is mostly the small one.
  bool search(int source, int target) {
    std::ranges::fill(level_, -1);
    queue_.assign(1, target);
    level_[target] = 0;
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      const int v = queue_[i];
      for (int e = first_[v]; e >= 0; e = next_[e]) {
        const int u = head_[e];
        if (left_[e ^ 1] > 0 && level_[u] < 0) {
          level_[u] = level_[v] + 1;
          if (u == source) return true;
          queue_.push_back(u);
        }
      }
    }
    return false;
  }

  // A blocking flow in the level graph, at most `limit`. Iterative: a path may be as long as the graph.
  Amount advance(int source, int target, Amount limit) {
    Amount sent = 0;
    path_.clear();
    int u = source;
    while (sent < limit) {
      if (u == target) {
        Amount amount = limit - sent;
        for (int e : path_) amount = std::min(amount, left_[e]);
        std::size_t keep = path_.size();
        for (std::size_t i = path_.size(); i-- > 0;) {
          carry(path_[i], amount);
          if (left_[path_[i]] == 0) keep = i;
        }
        sent += amount;
        path_.resize(std::min(keep, path_.size()));
        u = path_.empty() ? source : head_[path_.back()];
        continue;
      }
      int& e = cursor_[u];
      while (e >= 0 && !(left_[e] > 0 && level_[head_[e]] == level_[u] - 1)) e = next_[e];
      if (e >= 0) {
        path_.push_back(e);
        u = head_[e];
      } else {
        level_[u] = nodes();  // a dead end
        if (path_.empty()) break;
        u = head_[path_.back() ^ 1];
        path_.pop_back();
      }
    }
    return sent;
  }

  Ints first_, next_, head_;
  Amounts base_, left_;
  Ints level_, cursor_, queue_, path_;
};

}  // namespace forestcoll
