#include "engine.hpp"

#include <cstring>
#include <mutex>
#include <sstream>

namespace forestcoll {
namespace {

constexpr Amount tile = 4096;  // elements

using Value = std::int64_t;   // of an element
using Random = std::uint64_t;

// A mixing function of position and rank: no period, so that no two chunks look alike.
std::uint32_t mix(Random position, std::uint32_t rank) {
  const std::uint32_t h = static_cast<std::uint32_t>(position) * 0x9e3779b1u +
                          static_cast<std::uint32_t>(position >> 32) * 0x7feb352du +
                          rank * 0x846ca68bu;
  const std::uint32_t m = (h ^ h >> 15) * 0x2c1b3c6du;
  return m ^ m >> 16;
}

bool is_integer(Type type) {
  return type >= Type::int8 && type <= Type::int64;
}

bool is_sum(Reduction op) { return op == Reduction::sum || op == Reduction::avg; }

// Up to here a floating-point type holds every integer.
Value exact_limit(Type type) {
  switch (type) {
    case Type::float16: return 1 << 11;
    case Type::bfloat16: return 1 << 8;
    case Type::fp8: return 1 << 4;
    case Type::float32: return 1 << 24;
    default: return Value{1} << 53;
  }
}

// The values of one rank, as integers. Kinds:
//   bits     any bits of the integer type (sums wrap, and still tell every contribution)
//   odd      odd integers: products wrap and never lose a factor
//   range    integers of so few bits that sums stay exact (else of up to 20 bits)
//   one_in   0 or 1, not 0 for at most one in `gate` ranks: sums of very many ranks
//   powers   +-1, or +-2 for one in `gate` ranks: products stay exact
class Values {
 public:
  explicit Values(const Pattern& p) {
    const Value limit = std::min(exact_limit(p.type), exact_limit(p.wire));
    if (is_integer(p.type)) {
      kind_ = p.reducing && p.op == Reduction::prod ? odd : bits;
    } else if (p.reducing && p.op == Reduction::prod) {
      kind_ = powers;
      gate_ = (p.ranks + 7) / 8;
    } else if (p.reducing && is_sum(p.op) && p.ranks > limit) {
      kind_ = one_in;
      gate_ = (p.ranks + limit - 1) / limit;
    } else {
      kind_ = range;
      const bool sum = p.reducing && is_sum(p.op);
      const Value top = std::min(limit / (sum ? p.ranks : 1), Value{1} << 20);
      while (Value{2} << bits_ <= top + 1) ++bits_;
    }
  }

  // operation(acc[i], value of `rank` at position first + i)
  template <class Operation>
  void apply(int rank, Amount first, Amount n, Value* acc, Operation operation) const {
    const auto loop = [&](auto draw) {
      for (Amount i = 0; i < n; ++i) {
        const Random position = first + i;
        acc[i] = operation(acc[i], draw(Random{mix(position, rank)}, position + rank));
      }
    };
    switch (kind_) {
      case bits: return loop([](Random h, Random) { return wide(h); });
      case odd: return loop([](Random h, Random) { return wide(h) | 1; });
      case range: return loop([shift = 32 - bits_](Random h, Random) { return h >> shift; });
      case one_in:
        return loop([this](Random h, Random turn) { return turn % gate_ == 0 ? h & 1 : 0; });
      case powers:
        return loop([this](Random h, Random turn) {
          const Value size = turn % gate_ == 0 && (h & 2) ? 2 : 1;
          return h & 1 ? -size : size;
        });
    }
  }

 private:
  enum Kind { bits, odd, range, one_in, powers };

  // 32 random bits to 64 (an odd multiplier keeps them apart).
  static Value wide(Random h) { return (h << 32 | h) * 0x9e3779b97f4a7c15u >> 3; }

  Kind kind_;
  int bits_ = 0;
  std::uint32_t gate_ = 1;
};

template <class T>
T from_integer(Value value) {
  return Arithmetic<T>::out(static_cast<typename Arithmetic<T>::Wide>(value));
}

template <class T>
void expected_tile(const Pattern& p, const Values& values, int source, Amount first, Amount n,
                   T* target) {
  Value acc[tile];
  const auto typed = [](Value v) -> Value {  // integers are compared as what they are in T
    if constexpr (std::is_integral_v<T>) return static_cast<T>(v);
    return v;
  };
  values.apply(source == reduced ? 0 : source, first, n, acc,
               [&](Value, Value v) { return typed(v); });
  for (int rank = 1; source == reduced && rank < p.ranks; ++rank)
    with_reduction(p.op, [&](auto chosen) {
      values.apply(rank, first, n, acc, [&](Value a, Value v) {
        return combine_elements<decltype(chosen)::op>(a, typed(v));
      });
    });
  const bool average = source == reduced && p.op == Reduction::avg;
  for (Amount i = 0; i < n; ++i) {
    target[i] = from_integer<T>(acc[i]);
    if (average) target[i] = divide_element(target[i], p.ranks);
  }
}

template <class T>
std::string text(T value) {
  std::ostringstream out;
  out.precision(17);
  if constexpr (sizeof(T) == 1)
    out << static_cast<int>(value);
  else if constexpr (std::is_arithmetic_v<T>)
    out << value;
  else
    out << widen(value);
  const std::string written = out.str();
  return written == "-nan" ? "nan" : written;  // its sign means nothing
}

}  // namespace

void fill(const Pattern& p, int source, Amount first, Amount count, byte* target,
          int threads) {
  const Values values(p);
  with_type(p.type, [&](auto zero) {
    auto* const to = reinterpret_cast<decltype(zero)*>(target);
    for_tiles(count, tile, threads, [&](Amount at, Amount n) {
      expected_tile(p, values, source, first + at, n, to + at);
    });
  });
}

Comparison compare(const Pattern& p, int source, Amount first, Amount count,
                   const std::vector<const byte*>& buffers, std::size_t limit, int threads,
                   const Epilogue* epilogue) {
  const Values values(p);
  Comparison result;
  result.wrong.assign(buffers.size(), 0);
  std::vector<std::vector<Difference>> found(buffers.size());
  std::mutex mutex;
  with_type(p.type, [&](auto zero) {
    for_tiles(count, tile, threads, [&](Amount at, Amount n) {
      using T = decltype(zero);
      T expected[tile];
      expected_tile(p, values, source, first + at, n, expected);
      if (source == reduced && epilogue)
        epilogue->apply(p.type, first + at, n, reinterpret_cast<byte*>(expected));
      for (std::size_t b = 0; b < buffers.size(); ++b) {
        const T* got = reinterpret_cast<const T*>(buffers[b]) + at;
        if (!std::memcmp(got, expected, n * sizeof(T))) continue;
        const std::lock_guard lock(mutex);
        std::size_t listed = 0;
        for (Amount i = 0; i < n; ++i) {
          if (!std::memcmp(got + i, expected + i, sizeof(T))) continue;
          ++result.wrong[b];
          if (listed++ < limit)
            found[b].push_back({static_cast<int>(b), at + i, text(expected[i]), text(got[i])});
        }
        std::ranges::sort(found[b]);
        if (found[b].size() > limit) found[b].resize(limit);
      }
    });
  });
  for (auto& list : found) result.first.insert(result.first.end(), list.begin(), list.end());
  return result;
}

}  // namespace forestcoll
