// Columns, read from the objects of program/program.py.

#include "columns.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace nb = nanobind;

namespace forestcoll::verify {
namespace {

std::int64_t number(nb::handle value) {
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (n == -1 && !overflow && PyErr_Occurred()) throw nb::python_error();
  return overflow > 0   ? std::numeric_limits<std::int64_t>::max()
         : overflow < 0 ? std::numeric_limits<std::int64_t>::min()
                        : n;
}

int narrow(std::int64_t n) {
  return static_cast<int>(std::clamp<std::int64_t>(n, std::numeric_limits<int>::min(),
                                                            std::numeric_limits<int>::max()));
}

int narrow(nb::handle value) { return narrow(number(value)); }

template <std::size_t N>
struct Name {
  char text[N];
  constexpr Name(const char (&word)[N]) { std::copy_n(word, N, text); }
};

// An attribute, whose name is interned once.
template <Name name>
nb::object get(nb::handle owner) {
  static PyObject* const key = PyUnicode_InternFromString(name.text);  // as long as Python itself
  PyObject* value = PyObject_GetAttr(owner.ptr(), key);
  if (!value) throw nb::python_error();
  return nb::steal(value);
}

template <Name name>
int get_int(nb::handle owner) {
  return narrow(get<name>(owner));
}

template <class F>
void each(nb::handle items, F&& f) {
  if (!PyTuple_Check(items.ptr())) throw nb::type_error("a program's sequences are tuples");
  const Py_ssize_t count = PyTuple_GET_SIZE(items.ptr());
  for (Py_ssize_t k = 0; k < count; ++k) f(nb::handle(PyTuple_GET_ITEM(items.ptr(), k)));
}

int size(nb::handle items) {
  return PyTuple_Check(items.ptr()) ? static_cast<int>(PyTuple_GET_SIZE(items.ptr())) : 0;
}

int looked_up(nb::dict table, nb::handle key, int otherwise) {
  PyObject* value = PyDict_GetItemWithError(table.ptr(), key.ptr());
  if (value) return narrow(nb::handle(value));
  if (PyErr_Occurred()) throw nb::python_error();
  return otherwise;
}

class Reader {
 public:
  Reader(Columns& out, const Words& words) : out_(out), words_(words) {}

  void read(nb::handle ranks) {
    each(ranks, [&](nb::handle rank) {
      close();
      const nb::object semaphores = get<"semaphores">(rank);
      each(semaphores, [&](nb::handle value) { out_.semaphores.push_back(narrow(value)); });
      int count = 0;
      each(get<"thread_blocks">(rank), [&](nb::handle block) { this->block(block, count++); });
      ++rank_;
    });
    close();
  }

 private:
  void close() {
    out_.ranks.push_back({count_of(out_.blocks),
                          count_of(out_.semaphores)});
  }

  void block(nb::handle block, int count) {
    Block made{rank_, count, count_of(out_.instructions), 0, get_int<"recv">(block),
               get_int<"send">(block), get_int<"channel">(block), count_of(out_.channels), 0, 0};
    each(get<"channels">(block), [&](nb::handle c) {
      const nb::object kind = get<"kind">(c);
      const int port = kind.equal(nb::str("memory")) ? 0
                                : kind.equal(nb::str("port")) ? 1
                                                                              : 2;
      out_.channels.push_back({get_int<"peer">(c), port, get_int<"index">(c)});
      ++made.channel_count;
    });
    switches_ = get<"switches">(block);
    each(get<"steps">(block), [&](nb::handle step) {
      if (nb::isinstance(step, words_.loop)) {
        const auto loop = count_of(out_.loops);
        out_.loops.push_back({number(get<"chunks">(step)), number(get<"unit_bytes">(step))});
        int at = 0;
        each(get<"body">(step), [&](nb::handle i) { instruction(i, made.steps, at++, loop); });
      } else {
        instruction(step, made.steps, 0, -1);
      }
      ++made.steps;
    });
    made.end = count_of(out_.instructions);
    out_.blocks.push_back(made);
  }

  void instruction(nb::handle i, int step, int at, int loop) {
    Instruction made{};
    made.op = looked_up(words_.operations, get<"op">(i), 0);
    made.step = step;
    made.at = at;
    made.loop = loop;
    made.operands = count_of(out_.operands);
    const nb::object switches = get<"switches">(i), src = get<"src">(i), dst = get<"dst">(i);
    const bool both = size(switches) == 2;  // sources come through the first, targets through the second
    operands(src, both ? switches : nb::object(), 0);
    made.sources = count_of(out_.operands) - made.operands;
    operands(dst, size(switches) ? switches : nb::object(), both ? 1 : 0);
    made.targets = count_of(out_.operands) - made.operands - made.sources;
    made.after = count_of(out_.after);
    each(get<"after">(i), [&](nb::handle pair) {
      if (size(pair) != 2) throw nb::type_error("'after' has pairs of thread block and step");
      out_.after.push_back({narrow(PyTuple_GET_ITEM(pair.ptr(), 0)), narrow(PyTuple_GET_ITEM(pair.ptr(), 1))});
      ++made.afters;
    });
    made.names = count_of(out_.names);
    const nb::object channels = get<"channels">(i), semaphores = get<"semaphores">(i), part = get<"part">(i);
    each(channels, [&](nb::handle c) { out_.names.push_back(narrow(c)); });
    each(semaphores, [&](nb::handle s) { out_.names.push_back(narrow(s)); });
    made.channels = size(channels);
    made.semaphores = size(semaphores);
    made.ident = get_int<"ident">(i);
    made.group = get_int<"group">(i);
    if (size(part) != 2) throw nb::type_error("'part' is a pair of index and size");
    made.part = narrow(PyTuple_GET_ITEM(part.ptr(), 0));
    made.parts = narrow(PyTuple_GET_ITEM(part.ptr(), 1));
    out_.instructions.push_back(made);
  }

  void operands(nb::handle refs, nb::object switches, int first) {
    each(refs, [&](nb::handle ref) {
      const nb::object rank = get<"rank">(ref);
      Operand made{rank.is_none() ? own_rank : std::max(0, narrow(rank)),
                   looked_up(words_.buffers, get<"buffer">(ref), -1), get_int<"offset">(ref), get_int<"count">(ref)};
      const int which = switches.is_valid() ? narrow(PyTuple_GET_ITEM(switches.ptr(), first)) : -1;
      if (which < 0 || which >= size(switches_)) return out_.operands.push_back(made);
      each(get<"ranks">(PyTuple_GET_ITEM(switches_.ptr(), which)), [&](nb::handle peer) {
        made.rank = narrow(peer) == rank_ ? own_rank : std::max(0, narrow(peer));
        out_.operands.push_back(made);
      });
    });
  }

  Columns& out_;
  const Words& words_;
  nb::object switches_;
  int rank_ = 0;
};

template <class T>
T field(nb::handle row, const char* name) {
  return nb::cast<T>(row.attr(name));
}

}  // namespace

Words::Words(nb::dict rows, nb::sequence buffer_words, nb::object loop_class) : loop(loop_class) {
  for (auto [op, row] : rows) {
    const bool adds = field<bool>(row, "adds"), packets = field<bool>(row, "packets");
    const bool sends = field<bool>(row, "sends"), receives = field<bool>(row, "receives");
    const bool moves = field<bool>(row, "moves_data"), put = field<bool>(row, "spreads") && !packets;
    const std::size_t next = table.size();
    operations[op] = next;
    table.push_back({field<int>(row, "remote_src"), field<int>(row, "remote_dst"),
                     field<int>(row, "packet_src"), field<int>(row, "packet_dst"), sends,
                     receives, adds, field<bool>(row, "signals"), field<bool>(row, "waits"),
                     field<bool>(row, "pairs"), moves && !(adds || packets || sends || receives),
                     moves && !packets && !put, put, packets});
  }
  for (nb::handle word : buffer_words) {
    const std::size_t next = buffers.size();
    buffers[word] = next;
  }
  const auto of = [&](const char* word) { return nb::cast<int>(operations[word]); };
  op = {of("nop"), of("copy"), of("reduce"), of("reduce_to"), of("put_signal_flush"), of("get"),
        of("relaxed_signal"), of("relaxed_wait"), of("flush"), of("barrier"), of("acquire"), of("release"),
        of("put_packets"), of("forward_packets"), of("fabric_store"), of("fabric_reduce_store")};
}

Columns read_program(nb::str style, nb::handle ranks, const Words& words) {
  Columns columns;
  columns.table = words.table;
  columns.op = words.op;
  columns.fifo = style.equal(nb::str("fifo"));
  Reader(columns, words).read(ranks);
  return columns;
}

}  // namespace forestcoll::verify
