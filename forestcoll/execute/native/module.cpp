// Python's door to the CPU engine: tables in as integer arrays, results out as plain tuples.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <tuple>

#include "engine.hpp"

namespace nb = nanobind;
using namespace forestcoll;

namespace {

using Table32 = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table64 = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

#define FC_OPERATION_NAME(name) #name,
const std::vector<std::string> op_names = {FC_OPERATIONS(FC_OPERATION_NAME) "loop"};
#undef FC_OPERATION_NAME
const std::vector<std::string> type_names = {"float32", "float16", "bfloat16", "float64",
                                             "int8",    "uint8",   "int32",    "int64"};
#define FC_REDUCTION_NAME(name) #name,
const std::vector<std::string> reduction_names = {FC_REDUCTIONS(FC_REDUCTION_NAME) "avg"};
#undef FC_REDUCTION_NAME

// Rows of integers become structures of the same integers.
template <class Record, class Table>
std::vector<Record> records(const Table& table, const char* what) {
  using Integer = typename Table::Scalar;
  static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) % sizeof(Integer) == 0);
  if (table.shape(1) != sizeof(Record) / sizeof(Integer))
    throw std::invalid_argument(std::string(what) + ": wrong number of columns");
  std::vector<Record> rows(table.shape(0));
  if (!rows.empty()) std::memcpy(rows.data(), table.data(), rows.size() * sizeof(Record));
  return rows;
}

struct Pair {
  std::int32_t first, second;
};

Plan plan_of(const Table32& instructions, const Table64& operands, const Table32& dependencies,
             const std::vector<std::int32_t>& names, const Table64& loops, const Table32& blocks,
             const Table32& connections, const std::vector<std::int64_t>& semaphores,
             std::int32_t barriers) {
  Plan plan;
  plan.instructions = records<Instruction>(instructions, "instructions");
  plan.operands = records<Operand>(operands, "operands");
  plan.dependencies = records<Dependency>(dependencies, "dependencies");
  plan.names = names;
  plan.loops = records<Loop>(loops, "loops");
  plan.blocks = records<Block>(blocks, "blocks");
  for (const Pair& ends : records<Pair>(connections, "connections")) {
    plan.writers.push_back(ends.first);
    plan.readers.push_back(ends.second);
  }
  plan.semaphores = semaphores;
  plan.barriers = barriers;
  return plan;
}

using StopRow = std::tuple<std::int32_t, std::int32_t, std::int64_t, std::int64_t, std::int64_t,
                           bool, int, std::int32_t, std::int64_t, std::int64_t>;

StopRow row(const Stop& s) {
  return {s.block, s.at.pc, s.at.slice, s.at.round, s.at.piece, s.finished,
          static_cast<int>(s.awaits), s.object, s.wanted, s.present};
}

using LeftoverRow = std::tuple<int, std::int32_t, std::int64_t>;
using DeathRow = std::tuple<int, int, int, int>;
using AverageRow = std::tuple<std::int32_t, std::uintptr_t, std::int64_t>;
using ResultRow = std::tuple<int, std::int64_t, std::vector<StopRow>, std::vector<LeftoverRow>,
                             std::vector<DeathRow>>;

// Python's own signal handling runs in between: Ctrl-C ends the launch, and the KeyboardInterrupt is
// raised once all workers have stopped. Python forks with its lock held: nobody does while we hold it.
ResultRow launch(Engine& engine, const std::vector<std::uintptr_t>& addresses,
                 const Options& options, const std::vector<AverageRow>& sums, int turn, int turns) {
  std::vector<byte*> starts;
  std::vector<Average> averages;
  for (const auto& [rank, start, bytes] : sums)
    averages.push_back({rank, reinterpret_cast<byte*>(start), bytes});
  for (const std::uintptr_t a : addresses) starts.push_back(reinterpret_cast<byte*>(a));
  Result result;
  {
    const nb::gil_scoped_release released;
    const Caller caller{[] {
                          const nb::gil_scoped_acquire held;
                          return PyErr_CheckSignals() != 0;
                        },
                        [](const std::function<void()>& work) {
                          const nb::gil_scoped_acquire held;
                          work();
                        }};
    result = engine.launch(starts, options, averages, turn, turns, caller);
  }
  if (PyErr_Occurred()) throw nb::python_error();
  std::vector<StopRow> stops;
  if (result.status == Status::mismatch) stops.push_back(row(result.culprit));
  else
    for (const Stop& s : result.stops) stops.push_back(row(s));
  std::vector<LeftoverRow> leftovers;
  for (const auto& l : result.leftovers) leftovers.emplace_back(l.kind, l.object, l.amount);
  std::vector<DeathRow> deaths;
  for (const Death& d : result.deaths) deaths.emplace_back(d.rank, d.process, d.signal, d.code);
  return {static_cast<int>(result.status), result.nanoseconds, stops, leftovers, deaths};
}

Options options_of(std::int64_t chunk_bytes, std::int64_t slice_bytes, std::int64_t slot_bytes,
                   int slots, int type, int op, bool processes, int threads, double patience) {
  if (std::isnan(patience)) throw std::invalid_argument("patience: no number of seconds");
  if (type < 0 || type >= static_cast<int>(type_names.size()) || op < 0 ||
      op >= static_cast<int>(reduction_names.size()))
    throw std::invalid_argument("unknown type or operation");
  return {chunk_bytes, slice_bytes, slot_bytes, slots, static_cast<Type>(type),
          static_cast<Reduction>(op), processes, threads, patience};
}

Pattern pattern_of(int type, int op, bool reducing, int ranks) {
  return {static_cast<Type>(type), static_cast<Reduction>(op), reducing, ranks};
}

using DifferenceRow = std::tuple<int, std::int64_t, std::string, std::string>;

std::tuple<std::vector<std::int64_t>, std::vector<DifferenceRow>> compare_buffers(
    const Pattern& pattern, int source, std::int64_t first, std::int64_t count,
    const std::vector<std::uintptr_t>& addresses, int limit, int threads) {
  std::vector<const byte*> buffers;
  for (const std::uintptr_t a : addresses) buffers.push_back(reinterpret_cast<const byte*>(a));
  Comparison c;
  {
    const nb::gil_scoped_release released;
    c = compare(pattern, source, first, count, buffers, limit, threads);
  }
  std::vector<DifferenceRow> rows;
  for (const Difference& d : c.first) rows.emplace_back(d.buffer, d.element, d.expected, d.found);
  return {c.wrong, rows};
}

}  // namespace

NB_MODULE(_engine, m) {
  m.doc() = "The interpreter of programs, on CPU threads or processes.";
  m.def("op_names", [] { return op_names; });
  m.def("type_names", [] { return type_names; });
  m.def("reduction_names", [] { return reduction_names; });
  m.def("element_bytes", [](int type) { return element_bytes(static_cast<Type>(type)); });
  nb::class_<Options>(m, "Options")
      .def("__init__",
           [](Options* self, std::int64_t chunk_bytes, std::int64_t slice_bytes,
              std::int64_t slot_bytes, int slots, int type, int op, bool processes, int threads,
              double patience) {
             new (self) Options(options_of(chunk_bytes, slice_bytes, slot_bytes, slots, type, op,
                                           processes, threads, patience));
           },
           nb::kw_only(), nb::arg("chunk_bytes"), nb::arg("slice_bytes"), nb::arg("slot_bytes"),
           nb::arg("slots"), nb::arg("type"), nb::arg("op"), nb::arg("processes") = false,
           nb::arg("threads"), nb::arg("patience"));
  nb::class_<Engine>(m, "Engine")
      .def("__init__",
           [](Engine* self, const Table32& instructions, const Table64& operands,
              const Table32& dependencies, const std::vector<std::int32_t>& names,
              const Table64& loops, const Table32& blocks, const Table32& connections,
              const std::vector<std::int64_t>& semaphores, std::int32_t barriers) {
             new (self) Engine(plan_of(instructions, operands, dependencies, names, loops, blocks,
                                       connections, semaphores, barriers));
           },
           nb::kw_only(), nb::arg("instructions"), nb::arg("operands"), nb::arg("dependencies"),
           nb::arg("names"), nb::arg("loops"), nb::arg("blocks"), nb::arg("connections"),
           nb::arg("semaphores"), nb::arg("barriers"))
      .def("launch", &launch, nb::arg("addresses"), nb::arg("options"),
           nb::arg("averages") = std::vector<AverageRow>(), nb::arg("turn") = 0,
           nb::arg("turns") = 1)
      .def("rest", &Engine::rest);
  nb::class_<Pattern>(m, "Pattern")
      .def("__init__",
           [](Pattern* self, int type, int op, bool reducing, int ranks) {
             new (self) Pattern(pattern_of(type, op, reducing, ranks));
           },
           nb::arg("type"), nb::arg("op"), nb::arg("reducing"), nb::arg("ranks"));
  m.attr("REDUCED") = reduced;
  m.def(
      "fill",
      [](const Pattern& pattern, int source, std::int64_t first, std::int64_t count,
         std::uintptr_t address, int threads) {
        const nb::gil_scoped_release released;
        fill(pattern, source, first, count, reinterpret_cast<byte*>(address), threads);
      },
      nb::arg("pattern"), nb::arg("source"), nb::arg("first"), nb::arg("count"),
      nb::arg("address"), nb::arg("threads"));
  m.def("compare", &compare_buffers, nb::arg("pattern"), nb::arg("source"), nb::arg("first"),
        nb::arg("count"), nb::arg("addresses"), nb::arg("limit"), nb::arg("threads"));
}
