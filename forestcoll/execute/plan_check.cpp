// A plan's tables looked over once, before anything runs: the interpreter follows their numbers blindly.

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "engine.hpp"

namespace forestcoll {
namespace {

constexpr std::int64_t most_rows = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t most_ranks = 1 << 20;

void require(bool condition, const char* table, std::size_t row, const char* what) {
  if (!condition)
    throw std::invalid_argument(std::string(table) + "[" + std::to_string(row) + "]: " + what);
}

// Whether rows [first, first + count) are there.
bool within(std::int64_t first, std::int64_t count, std::size_t rows) {
  return first >= 0 && count >= 0 && first + count <= static_cast<std::int64_t>(rows);
}

// Whether the operation can do with so many operands.
bool operands_fit(const Instruction& in) {
  const std::int32_t s = in.sources, t = in.targets;
  switch (static_cast<Op>(in.op)) {
    case Op::send:
    case Op::recv_reduce_send:
      return s >= 1;
    case Op::recv:
      return t >= 1;
    case Op::recv_copy_send:
      return s + t >= 1;
    case Op::recv_reduce_copy:
    case Op::recv_reduce_copy_send:
    case Op::reduce:
    case Op::reduce_to:
    case Op::read_reduce:
    case Op::read_reduce_put:
    case Op::reduce_put:
    case Op::fabric_reduce_store:
    case Op::forward_packets:
    case Op::unpack:
      return s >= 1 && t >= 1;
    case Op::reduce_packets:
    case Op::reduce_put_packets:
    case Op::reduce_copy_packets:
    case Op::reduce_copy_put_packets:
      return s >= 2 && t >= 1;
    case Op::copy:
    case Op::put:
    case Op::put_signal:
    case Op::put_signal_flush:
    case Op::get:
    case Op::fabric_store:
    case Op::put_packets:
    case Op::copy_packets:
      return t == 0 || s == 1 || s == t;
    default:
      return true;
  }
}

// Whether what the operation moves is as long at both ends: with each target its source, or all alike.
bool lengths_fit(const Plan& plan, const Instruction& in) {
  const Operand* operands = plan.operands.data() + in.operands;
  const bool pairs = in.sources == in.targets;
  for (std::int32_t i = 0; i < in.sources + in.targets; ++i) {
    const Operand& twin = pairs ? operands[i % in.sources] : operands[0];
    if (operands[i].count != twin.count) return false;
    if (in.loop >= 0 && operands[i].count != plan.loops[static_cast<std::size_t>(in.loop)].chunks)
      return false;
  }
  return true;
}

// Whether packets, which take twice as many bytes, lie in scratch.
bool packets_fit(const Plan& plan, const Instruction& in) {
  const Op op = static_cast<Op>(in.op);
  if (op < Op::put_packets || op > Op::reduce_copy_put_packets) return true;
  const bool made = op == Op::put_packets || op == Op::copy_packets;
  const bool summed = op >= Op::reduce_packets;
  const std::int32_t plain_sources = made ? in.sources : summed ? 1 : 0;
  const std::int32_t plain_targets = op == Op::unpack || summed ? 1 : 0;
  const Operand* operands = plan.operands.data() + in.operands;
  for (std::int32_t i = 0; i < in.sources + in.targets; ++i) {
    const bool plain = i < plain_sources || (i >= in.sources && i < in.sources + plain_targets);
    if (!plain && operands[i].buffer != 2) return false;
  }
  return true;
}

bool op_receives(Op op) { return op >= Op::recv && op <= Op::recv_reduce_copy_send; }

void check_instruction(const Plan& plan, std::size_t row) {
  const Instruction& in = plan.instructions[row];
  const auto check = [row](bool condition, const char* what) {
    require(condition, "instructions", row, what);
  };
  check(in.op >= 0 && in.op <= static_cast<std::int32_t>(Op::loop), "unknown operation");
  check(in.step >= 0, "a negative step");
  check(in.sources >= 0 && in.targets >= 0 && in.sources <= max_sources &&
            within(in.operands, std::int64_t{in.sources} + in.targets, plan.operands.size()),
        "operands that are not there");
  check(operands_fit(in), "too few operands");
  check(packets_fit(plan, in), "packets outside of scratch");
  check(within(in.after, in.afters, plan.dependencies.size()), "dependencies that are not there");
  check(within(in.names, in.named, plan.names.size()), "semaphores that are not there");
  if (static_cast<Op>(in.op) == Op::barrier)
    check(in.barrier >= 0 && in.barrier < plan.barriers && in.group > 0, "no such barrier");
  check(in.parts > 0 && in.part >= 0 && in.part < in.parts, "no such part");
  check(in.loop >= -1 && in.loop < static_cast<std::int64_t>(plan.loops.size()), "no such loop");
  check(lengths_fit(plan, in), "operands of different lengths");
}

void check_block(const Plan& plan, std::size_t row) {
  const Block& block = plan.blocks[row];
  const auto check = [row](bool condition, const char* what) {
    require(condition, "blocks", row, what);
  };
  const auto connections = static_cast<std::int64_t>(plan.writers.size());
  check(block.rank >= 0 && block.rank < most_ranks, "no such rank");
  check(block.begin <= block.end && within(block.begin, block.end - block.begin, plan.instructions.size()),
        "instructions that are not there");
  check(block.steps >= 0, "a negative number of steps");
  check(block.incoming >= -1 && block.incoming < connections && block.outgoing >= -1 &&
            block.outgoing < connections,
        "no such connection");
  for (std::int32_t pc = block.begin; pc < block.end; ++pc) {
    const Instruction& in = plan.instructions[static_cast<std::size_t>(pc)];
    const Op op = static_cast<Op>(in.op);
    check(!op_sends(op) || block.outgoing >= 0, "sends without a connection");
    check(!op_receives(op) || block.incoming >= 0, "receives without a connection");
    for (std::int32_t i = in.operands; i < in.operands + in.sources + in.targets; ++i) {
      const Operand& o = plan.operands[static_cast<std::size_t>(i)];
      check(o.buffer < buffers_each || o.rank == block.rank, "a peer's allocation is not known");
    }
    if (in.loop < 0 || op == Op::loop) continue;
    const Loop& loop = plan.loops[static_cast<std::size_t>(in.loop)];
    check(block.begin <= loop.first && loop.first <= pc && pc <= loop.last && loop.last < block.end,
          "an instruction outside of its loop");
  }
}

}  // namespace

void check_plan(const Plan& plan) {
  for (const std::size_t rows :
       {plan.instructions.size(), plan.operands.size(), plan.dependencies.size(), plan.names.size(),
        plan.loops.size(), plan.blocks.size(), plan.writers.size(), plan.semaphores.size()})
    if (rows > static_cast<std::size_t>(most_rows))
      throw std::invalid_argument("tables: more than 2^31 - 1 rows");
  if (plan.barriers < 0) throw std::invalid_argument("barriers: fewer than none");
  const auto blocks = static_cast<std::int64_t>(plan.blocks.size());
  for (std::size_t i = 0; i < plan.operands.size(); ++i) {
    const Operand& o = plan.operands[i];
    require(o.rank >= 0 && o.rank < most_ranks && o.buffer >= 0 && o.buffer < addresses_each, "operands", i,
            "no such buffer");
    require(o.offset >= 0 && o.offset <= most_rows && o.count > 0 && o.count <= most_rows, "operands",
            i, "chunks that no buffer has");
  }
  for (std::size_t i = 0; i < plan.dependencies.size(); ++i) {
    const Dependency& d = plan.dependencies[i];
    require(d.block >= 0 && d.block < blocks && d.step >= 0 && d.steps >= 0, "dependencies", i,
            "no such step");
  }
  for (std::size_t i = 0; i < plan.names.size(); ++i)
    require(plan.names[i] >= 0 && within(plan.names[i], 1, plan.semaphores.size()), "names", i,
            "no such semaphore");
  for (std::size_t i = 0; i < plan.loops.size(); ++i) {
    const Loop& l = plan.loops[i];
    require(l.first >= 0 && l.first <= l.last && within(l.last, 1, plan.instructions.size()), "loops",
            i, "instructions that are not there");
    require(l.chunks > 0 && l.chunks <= most_rows && l.unit_bytes > 0, "loops", i, "no such length");
  }
  for (std::size_t i = 0; i < plan.writers.size(); ++i)
    require(plan.writers[i] >= 0 && plan.writers[i] < blocks && plan.readers[i] >= 0 &&
                plan.readers[i] < blocks,
            "connections", i, "no such block");
  for (std::size_t i = 0; i < plan.instructions.size(); ++i) check_instruction(plan, i);
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) check_block(plan, i);
}

}  // namespace forestcoll
