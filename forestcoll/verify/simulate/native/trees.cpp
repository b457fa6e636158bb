// Threads of a forest alone.

#include <algorithm>
#include <ranges>

#include "coders.hpp"

namespace forestcoll::simulate {

int TreeCoder::write(int number, bool reduces, int root, double bytes, const std::vector<Edge>& edges,
                     const std::vector<Gate>& gates) {
  std::vector<std::vector<int>> inward(posts_.size());  // counters of the edges that lead to a rank
  std::vector<int> hops(posts_.size());                 // that data still go from there
  for (const auto& [rank, peer, route, in_order] : std::views::reverse(edges))
    hops[rank] = std::max(hops[rank], 1 + hops[peer]);
  for (const auto& [rank, peer, route, in_order] : edges) {
    const int arrived = threads_.counter();
    std::vector<int> waits = inward[rank];
    std::vector<const Gate*> gated;
    inward[peer].push_back(arrived);
    for (const Gate& gate : gates) {
      if (rank != root) break;
      if (gate.second.empty())
        waits.push_back(gate.first);
      else
        gated.push_back(&gate);
    }
    const bool starts = in_order && !reduces;
    if (starts && waits.empty() && gated.empty()) {
      if (posts_[rank].empty()) order_.push_back(rank);
      posts_[rank].push_back({hops[peer], number, peer, route, bytes, arrived});
      continue;
    }
    Thread& thread = threads_.thread(rank, number);
    thread.origin = {number, op_, peer};
    thread.loop(gated.empty() ? pieces_ : 1);
    for (int piece = 0; piece < (gated.empty() ? 1 : pieces_); ++piece) {
      for (const Gate* gate : gated) thread.reach(gate->first, gate->second[piece], 0);
      for (const int counter : waits) thread.reach(counter, 1, 1);
      thread.transfer(starts ? Kind::start : Kind::move, route, {bytes, bytes}, 0, arrived);
    }
  }
  if (!reduces || inward[root].size() == 1) return reduces ? inward[root][0] : -1;
  const int done = threads_.counter();
  Thread& thread = threads_.thread(root, number, true);
  thread.loop(pieces_);
  for (const int counter : inward[root]) thread.reach(counter, 1, 1);
  thread.post(done);
  return done;
}

void TreeCoder::write_posts() {
  for (const int rank : order_) {
    Thread& thread = threads_.thread(rank, all_trees);
    thread.loop(pieces_);
    std::ranges::stable_sort(posts_[rank], std::greater(), &Post::hops);
    for (const Post& post : posts_[rank]) {
      thread.origin = {post.tree, op_, post.peer};
      thread.transfer(Kind::start, post.route, {post.bytes, post.bytes}, 0, post.arrived);
    }
  }
}

}  // namespace forestcoll::simulate
