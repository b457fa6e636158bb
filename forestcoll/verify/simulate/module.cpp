// Python's door to the event engine: tables in, plain tuples and lists out.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine.hpp"

namespace nb = nanobind;
using namespace forestcoll::simulate;

namespace {

using Integers = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Stages = std::vector<std::vector<int>>;  // links of each stage
using SpanRow = std::tuple<std::int32_t, std::int32_t, std::int32_t, double, double>;
using StuckRow = std::tuple<std::int32_t, std::int32_t, std::int32_t>;
using Result = std::tuple<double, std::vector<double>, std::vector<double>, std::vector<SpanRow>,
                          std::vector<StuckRow>, std::int64_t>;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

Route route_of(const Network& network, const Stages& stages, double lead, double latency,
               bool cut_through) {
  Route route;
  route.lead = lead;
  route.latency = latency;
  for (const std::vector<int>& links : stages) {
    Stage stage;
    for (int link : links) {
      require(0 <= link && link < static_cast<int>(network.rule.size()), "a route over no link");
      const Rule rule = network.rule[link];
      route.weighted |= rule == Rule::weighted;
      if (rule == Rule::fifo) route.narrowest = std::min(route.narrowest, network.capacity[link]);
      (rule == Rule::fifo ? stage.queued : stage.shared).push_back(link);
    }
    // What is shared, hop after hop, is one flow.
    const bool joins = cut_through && !route.stages.empty() && stage.queued.empty() &&
                       route.stages.back().queued.empty();
    if (joins)
      for (int link : stage.shared) route.stages.back().shared.push_back(link);
    else
      route.stages.push_back(std::move(stage));
  }
  for (Stage& stage : route.stages)
    for (std::vector<int>* links : {&stage.shared, &stage.queued}) {
      std::sort(links->begin(), links->end());
      require(std::adjacent_find(links->begin(), links->end()) == links->end(),
              "a route crosses a link twice");
    }
  return route;
}

Code code_of(const Integers& operations, const Doubles& sizes, const Integers& segments,
             std::vector<std::int64_t> counters, int threads, int routes) {
  require(operations.shape(1) == 5 && sizes.shape(1) == 3 && segments.shape(1) == 4 &&
              operations.shape(0) == sizes.shape(0),
          "tables of other columns");
  Code code;
  code.counters = std::move(counters);
  code.threads = threads;
  const auto held = static_cast<int>(code.counters.size());
  const auto count = static_cast<int>(operations.shape(0));
  for (int k = 0; k < count; ++k) {
    const std::int32_t* o = operations.data() + 5 * k;
    const double* s = sizes.data() + 3 * k;
    require(0 <= o[0] && o[0] <= static_cast<int>(Kind::delay), "an unknown operation");
    const auto kind = static_cast<Kind>(o[0]);
    const bool counts = kind == Kind::take || kind == Kind::reach || kind == Kind::post;
    const bool moves = kind == Kind::move || kind == Kind::fetch || kind == Kind::start;
    require(!counts || (0 <= o[1] && o[1] < held), "an operation on no counter");
    require(!moves || (0 <= o[1] && o[1] < routes), "a transfer over no route");
    require(-1 <= o[4] && o[4] < held, "a transfer that posts in no counter");
    code.operations.push_back({kind, o[1], o[2], o[3], o[4], s[0], s[1], s[2]});
  }
  int thread = 0;
  for (std::size_t k = 0; k < segments.shape(0); ++k) {
    const std::int32_t* s = segments.data() + 4 * k;
    require(thread <= s[0] && s[0] < threads, "segments out of order");
    require(0 <= s[1] && s[1] <= s[2] && s[2] <= count && s[3] >= 0, "a segment of no operations");
    thread = s[0];
    code.segments.push_back({s[0], s[1], s[2], s[3]});
  }
  return code;
}

void poll() {
  nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals()) throw nb::python_error();
}

Result simulate(const std::vector<double>& capacity, const std::vector<int>& rules,
                const std::vector<std::tuple<double, double, Stages>>& ways, const Integers& operations,
                const Doubles& sizes, const Integers& segments, std::vector<std::int64_t> counters,
                int threads, bool cut_through, std::uint64_t seed, bool timeline) {
  Network network;
  network.capacity = capacity;
  require(capacity.size() == rules.size(), "a rule for each link");
  for (double c : capacity) require(c > 0, "a link without capacity");
  for (int rule : rules) {
    require(0 <= rule && rule <= static_cast<int>(Rule::weighted), "an unknown rule");
    network.rule.push_back(static_cast<Rule>(rule));
  }
  std::vector<Route> routes;
  for (const auto& [lead, latency, stages] : ways)
    routes.push_back(route_of(network, stages, lead, latency, cut_through));
  const Code code = code_of(operations, sizes, segments, std::move(counters), threads,
                            static_cast<int>(routes.size()));
  Outcome found;
  {
    nb::gil_scoped_release free;
    found = run(network, routes, code, cut_through, seed, timeline, poll);
  }
  std::vector<SpanRow> spans;
  for (const Span& s : found.spans)
    spans.emplace_back(s.thread, s.operation, s.round, s.start, s.end);
  std::vector<StuckRow> stuck;
  for (const Stuck& s : found.stuck) stuck.emplace_back(s.thread, s.operation, s.round);
  return {found.time, found.bytes, found.ends, spans, stuck, found.transfers};
}

}  // namespace

NB_MODULE(_simulate, m) {
  m.def("simulate", &simulate, nb::arg("capacity"), nb::arg("rules"), nb::arg("routes"),
        nb::arg("operations"), nb::arg("sizes"), nb::arg("segments"), nb::arg("counters"),
        nb::arg("threads"), nb::arg("cut_through"), nb::arg("seed"), nb::arg("timeline"));
}
