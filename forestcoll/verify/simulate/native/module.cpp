// Python's door to the event engine: numbers in, plain tuples and lists out.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "coders.hpp"
#include "engine.hpp"

namespace nb = nanobind;

namespace forestcoll::simulate {
namespace {

using Stages = std::vector<std::vector<int>>;  // links of each stage
// Where an operation comes from: rank, thread block, whether it is a proxy's, step, operation, peer.
using At = std::tuple<int, int, bool, int, int, int>;
using SpanRow = std::tuple<At, double, double, int, double>;  // start, end, route or -1, bytes
using Result = std::tuple<double, std::vector<double>, std::vector<SpanRow>, std::vector<At>, std::int64_t, nb::bytes>;

void add_route(Network& network, const Stages& stages, double lead, double latency, bool cut_through) {
  Route route{.first = verify::count_of(network.stages), .lead = lead, .latency = latency};
  Stages shared, queued;
  for (const std::vector<int>& links : stages) {
    const auto waits = [&network](int link) { return network.rule[link] == Rule::fifo; };
    // What is shared, hop after hop, is one flow.
    const bool joins = cut_through && !queued.empty() && queued.back().empty() &&
                       std::ranges::none_of(links, waits);
    if (!joins) shared.emplace_back(), queued.emplace_back();
    for (int link : links) {
      route.weighted |= network.rule[link] == Rule::weighted;
      route.queues |= waits(link);
      if (waits(link)) route.narrowest = std::min(route.narrowest, network.capacity[link]);
      (waits(link) ? queued : shared).back().push_back(link);
    }
  }
  for (std::size_t s = 0; s < shared.size(); ++s) {
    Stage& stage = network.stages.emplace_back();
    stage.first = verify::count_of(network.links);
    for (std::vector<int>* links : {&shared[s], &queued[s]}) {
      std::ranges::sort(*links);
      stage.queued = verify::count_of(network.links);
      verify::append(network.links, *links);
    }
    stage.end = verify::count_of(network.links);
  }
  route.end = verify::count_of(network.stages);
  network.routes.push_back(route);
}

void poll() {
  nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals()) throw nb::python_error();
}

At at(const Thread& thread, int operation) {
  const Origin& origin = thread.origins[operation];
  return {thread.rank, thread.block, thread.proxy, origin.step, origin.op, origin.peer};
}

SpanRow span_row(const Thread& thread, const Span& span) {
  const Operation& o = thread.operations[span.operation];
  const bool moves = o.kind == Kind::move || o.kind == Kind::fetch || o.kind == Kind::start;
  const auto after = std::ranges::upper_bound(thread.segments, span.operation, {},
                                              [](const auto& segment) { return segment.first; });
  const double bytes = span.round == std::prev(after)->second - 1 ? o.last : o.full;
  return {at(thread, span.operation), span.start, span.end, moves ? o.object : -1, moves ? bytes : 0};
}

Result simulate(const std::vector<double>& capacity, const std::vector<int>& rules,
                const std::vector<std::tuple<double, double, Stages>>& ways, const Threads& threads,
                bool cut_through, std::uint64_t seed, bool timeline, double until) {
  Network network;
  network.capacity = capacity;
  for (int rule : rules) network.rule.push_back(static_cast<Rule>(rule));
  for (const auto& [lead, latency, stages] : ways) add_route(network, stages, lead, latency, cut_through);
  Outcome found;
  {
    nb::gil_scoped_release free;
    found = run(network, threads, cut_through, seed, timeline, until, poll);
  }
  std::vector<SpanRow> spans;
  for (const Span& s : found.spans) spans.push_back(span_row(threads.threads[s.thread], s));
  std::vector<At> stuck;
  for (const Stuck& s : found.stuck) stuck.push_back(at(threads.threads[s.thread], s.operation));
  const nb::bytes marks(reinterpret_cast<const char*>(found.marks.data()), found.marks.size() * sizeof(Mark));
  return {found.time, found.bytes, spans, stuck, found.transfers, marks};
}

}  // namespace

void bind_simulation(nb::module_& m) {
  m.def("simulate", &simulate, nb::arg("capacity"), nb::arg("rules"), nb::arg("routes"), nb::arg("threads"),
        nb::arg("cut_through"), nb::arg("seed"), nb::arg("timeline"), nb::arg("until"));
  nb::class_<Threads>(m, "Threads")
      .def(nb::init<>())
      .def_rw("marks", &Threads::marks)
      .def_rw("produced", &Threads::produced);
  m.attr("ALL_TREES") = TreeCoder::all_trees;
  nb::class_<TreeCoder>(m, "TreeCoder")
      .def(nb::init<Threads&, int, int, int>(), nb::keep_alive<1, 2>())
      .def("write", &TreeCoder::write)
      .def("write_posts", &TreeCoder::write_posts);
  nb::class_<Rates>(m, "Rates").def("__init__", [](Rates* self, double block, double sum, bool adds_slowly) {
    new (self) Rates{block, sum, adds_slowly};
  });
  nb::class_<Fabric>(m, "Fabric").def(nb::init<nb::object>());
  m.def("code_fifo", [](const verify::Columns& columns, int rounds, double full, double last,
                        std::int64_t chunks, int parts, std::int64_t slots, double wire, std::vector<int> boxes,
                        const Rates& rates, Fabric& fabric, Threads& threads) {
    code_fifo(columns, {rounds, {full, last}, chunks, parts, slots, wire, std::move(boxes)}, rates, fabric, threads);
  });
  m.def("code_onesided", &code_onesided);
}

}  // namespace forestcoll::simulate
