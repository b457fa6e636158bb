// Python's door to the CPU engine: tables in as integer arrays, results out as plain tuples.

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <tuple>

#include "../gpu/relay.hpp"
#include "launch.hpp"

namespace nb = nanobind;
using namespace forestcoll;

namespace {

#define FC_OPERATION_NAME(name) #name,
const std::vector<std::string> op_names = {FC_OPERATIONS(FC_OPERATION_NAME) "loop"};
#undef FC_OPERATION_NAME
const std::vector<std::string> type_names = {"float32", "float16", "bfloat16", "float64",
                                             "int8",    "uint8",   "int32",    "int64"};
#define FC_REDUCTION_NAME(name) #name,
const std::vector<std::string> reduction_names = {FC_REDUCTIONS(FC_REDUCTION_NAME) "avg"};
#undef FC_REDUCTION_NAME

// A table of tables.py: rows of integers become structures of the same integers.
template <class Record, class Integer = Index>
using Row = std::array<Integer, sizeof(Record) / sizeof(Integer)>;

template <class Record, class Integer = Index>
std::vector<Record> records(nb::handle rows) {
  static_assert(std::is_trivially_copyable_v<Record>);
  std::vector<Record> found;
  for (const auto& row : nb::cast<std::vector<Row<Record, Integer>>>(rows))
    found.push_back(std::bit_cast<Record>(row));
  return found;
}

struct Pair {
  Index first, second;
};

Plan plan_of(nb::handle tables) {
  Plan plan;
  plan.instructions = records<Instruction>(tables.attr("instructions"));
  plan.operands = records<Operand, Amount>(tables.attr("operands"));
  plan.dependencies = records<Dependency>(tables.attr("dependencies"));
  plan.names = nb::cast<std::vector<Index>>(tables.attr("names"));
  plan.loops = records<Loop, Amount>(tables.attr("loops"));
  plan.blocks = records<Block>(tables.attr("blocks"));
  for (const Pair& ends : records<Pair>(tables.attr("connections"))) {
    plan.writers.push_back(ends.first);
    plan.readers.push_back(ends.second);
  }
  plan.semaphores = nb::cast<std::vector<Amount>>(tables.attr("semaphores"));
  plan.barriers = nb::len(nb::object(tables.attr("barriers")));
  return plan;
}

byte* memory(std::uintptr_t address) { return reinterpret_cast<byte*>(address); }

using Numbers = std::pair<Amount, Amount>;
void make_engine(Machine* self, nb::handle tables, int ranks,
                 const std::vector<std::uintptr_t>& addresses, nb::handle sums,
                 const Row<Geometry, Amount>& geometry, Numbers slots, Numbers kind,
                 bool processes, int threads, double patience, int data,
                 const std::pair<nb::object, nb::object>& passages, nb::handle exact,
                 std::uintptr_t user, nb::args epilogue) {
  Options options{std::bit_cast<Geometry>(geometry), slots.first, slots.second,
                  static_cast<Type>(kind.first), static_cast<Reduction>(kind.second), ranks,
                  processes, threads, patience, {}, records<Area, Amount>(sums), static_cast<Type>(data),
                  records<Passage, Amount>(passages.first), records<Passage, Amount>(passages.second),
                  records<Area, Amount>(exact), epilogue.size() ? nb::cast<Epilogue>(epilogue[0]) : Epilogue{},
                  reinterpret_cast<decltype(Options::user)>(user)};
  for (const std::uintptr_t address : addresses) options.addresses.push_back(memory(address));
  new (self) Machine(plan_of(tables), std::move(options));
}

void make_epilogue(Epilogue* self, const std::vector<std::pair<int, double>>& steps, Numbers parts,
                   std::uintptr_t state, Amount count, const std::vector<Amount>& completes) {
  new (self) Epilogue{steps, parts.first, parts.second, reinterpret_cast<float*>(state), count, completes};
}

nb::object row(const Stop& s) {
  return nb::make_tuple(s.block, s.at.pc, s.at.slice, s.at.round, s.at.piece, s.finished,
                        static_cast<int>(s.awaits), s.object, s.wanted, s.present);
}

// Python's own signal handling runs in between: Ctrl-C ends the launch, and the KeyboardInterrupt is
// raised once all workers have stopped. Python forks with its lock held: nobody does while we hold it.
// `group`: nothing, or whose `begin()` and `end(sent)` bring all processes of the launch together.
nb::object launch_engine(Machine& engine, int turn, nb::args group) {
  Result result;
  const auto together = [](auto work) {  // false: it has raised, and the error waits in Python
    const nb::gil_scoped_acquire held;
    try {
      work();
      return true;
    } catch (nb::python_error& error) {
      error.restore();
      return false;
    }
  };
  {
    const nb::gil_scoped_release released;
    const Caller caller{[] {
                          const nb::gil_scoped_acquire held;
                          return PyErr_CheckSignals() != 0;
                        },
                        [](const std::function<void()>& work) {
                          const nb::gil_scoped_acquire held;
                          work();
                        },
                        [&] { return together([&] { group[0].attr("begin")(); }); },
                        [&](const std::vector<Count>& sent, std::vector<Count>& expected) {
                          return together([&] {
                            expected = nb::cast<std::vector<Count>>(group[0].attr("end")(sent));
                          });
                        }};
    result = launch(engine, turn, caller);
  }
  if (PyErr_Occurred()) throw nb::python_error();
  nb::list stops;
  if (result.status == Status::mismatch) result.stops = {result.culprit};
  for (const Stop& s : result.stops) stops.append(row(s));
  return nb::make_tuple(static_cast<int>(result.status), result.nanoseconds, stops, result.leftovers,
                        result.deaths);
}

nb::object failure_of(auto& joined) {
  int peer = -1;
  const std::string why = joined.failure(peer);
  return nb::make_tuple(peer, why);
}

void fill_buffer(const Row<Pattern>& pattern, int source, Amount first, Amount count,
                 std::uintptr_t address, int threads) {
  const nb::gil_scoped_release released;
  fill(std::bit_cast<Pattern>(pattern), source, first, count, memory(address), threads);
}

nb::object compare_buffers(
    const Row<Pattern>& pattern, int source, Amount first, Amount count,
    const std::vector<std::uintptr_t>& addresses, int limit, int threads, nb::args epilogue) {
  const Epilogue* const done = epilogue.size() ? nb::cast<const Epilogue*>(epilogue[0]) : nullptr;
  std::vector<const byte*> buffers;
  for (const std::uintptr_t address : addresses) buffers.push_back(memory(address));
  Comparison c;
  {
    const nb::gil_scoped_release released;
    c = compare(std::bit_cast<Pattern>(pattern), source, first, count, buffers, limit, threads, done);
  }
  return nb::make_tuple(c.wrong, c.first);
}

}  // namespace

NB_MODULE(_engine, m) {
  m.doc() = "The interpreter of programs, on CPU threads or processes.";
  m.def("op_names", [] { return op_names; });
  m.def("type_names", [] { return type_names; });
  m.def("reduction_names", [] { return reduction_names; });
  m.def("element_bytes", [](int type) { return wire_bytes(static_cast<Type>(type)); });
  m.def("element_values", [](int type) { return wire_values(static_cast<Type>(type)); });
  nb::class_<Epilogue>(m, "Epilogue").def("__init__", &make_epilogue);
  nb::class_<Machine>(m, "Engine")
      .def("__init__", &make_engine)
      .def("launch", &launch_engine)
      .def("rest", &end_processes)
      .def("join", [](Machine& engine, const Space& space, const std::vector<Index>& homes,
                      const std::vector<Index>& owners, const std::vector<Amount>& slots, Way& way) {
        engine.far = std::make_unique<Far>(engine, space, Division{homes, owners, slots});
        engine.far->join(way);
      }, nb::keep_alive<1, 2>())
      .def("activity", [](const Machine& engine) {
        const Activity a = activity(engine);
        return nb::make_tuple(a.idle, a.finished, a.sent, a.received, a.ticks);
      })
      .def("end", [](Machine& engine, int status) { end(engine, static_cast<Status>(status)); })
      .def("failure", [](Machine& engine) { return failure_of(engine.far->wire()); });
  nb::class_<Way>(m, "Way")
      .def("__init__", [](Way* self, const std::vector<int>& descriptors) {
        new (self) Way{make_sockets(descriptors), {}};
      })
      .def("__init__", [](Way* self, const std::vector<std::string>& libraries, int processes, int process,
                          const Row<Arena, Amount>& arena) {
        new (self) Way{load_wire(libraries, processes, process, std::bit_cast<Arena>(arena)), {}};
      })
      .def("reaches", [](const Way& way) { return way.wire->reaches; })
      .def("address", [](const Way& way) {
        return nb::bytes(way.wire->address.data(), way.wire->address.size());
      })
      .def("meet", [](Way& way, const std::vector<nb::bytes>& addresses) {
        for (const nb::bytes& each : addresses) way.addresses.emplace_back(each.c_str(), each.size());
      });
  nb::class_<Relay>(m, "Relay")
      .def("__init__", [](Relay* self, const Space& space, const Row<Relay::Layout, Amount>& layout,
                          const std::vector<Amount>& peers, const std::vector<Amount>& slots) {
        new (self) Relay(space, std::bit_cast<Relay::Layout>(layout), peers, slots);
      }, nb::keep_alive<1, 2>())
      .def("join", &Relay::join)
      .def("begin", &Relay::begin)
      .def("end", &Relay::end, nb::call_guard<nb::gil_scoped_release>())
      .def("give_up", &Relay::give_up)
      .def("close", &Relay::close)
      .def("failure", [](Relay& relay) { return failure_of(relay); })
      .def("counts", [](Relay& relay) {
        return nb::make_tuple(relay.wire().under_way(), relay.wire().sent(), relay.wire().received());
      });
  nb::class_<Space>(m, "Space")
      .def(nb::init<int, int, Amount, bool>())
      .def("arena", [](const Space& s, int p) { return reinterpret_cast<std::uintptr_t>(s.arena(p)); });
  m.attr("SLOT_HEAD") = slot_head;
  m.attr("RING") = nb::make_tuple(sizeof(Ring), packets_made, piece);
  m.attr("REDUCED") = reduced;
  m.def("fill", &fill_buffer);
  m.def("compare", &compare_buffers);
}
