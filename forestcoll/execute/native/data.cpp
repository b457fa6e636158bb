#include "engine.hpp"

#include <cstring>
#include <mutex>
#include <sstream>

namespace forestcoll {
namespace {

constexpr std::int64_t tile = 4096;  // elements

// A mixing function of position and rank: no period, so that no two chunks look alike.
std::uint32_t mix(std::uint64_t position, std::uint32_t rank) {
  const std::uint32_t h = static_cast<std::uint32_t>(position) * 0x9e3779b1u +
                          static_cast<std::uint32_t>(position >> 32) * 0x7feb352du +
                          rank * 0x846ca68bu;
  const std::uint32_t m = (h ^ h >> 15) * 0x2c1b3c6du;
  return m ^ m >> 16;
}

bool is_integer(Type type) {
  return type != Type::float32 && type != Type::float16 && type != Type::bfloat16 &&
         type != Type::float64;
}

bool is_sum(Reduction op) { return op == Reduction::sum || op == Reduction::avg; }

// Up to here a floating-point type holds every integer.
std::int64_t exact_limit(Type type) {
  switch (type) {
    case Type::float16: return std::int64_t{1} << 11;
    case Type::bfloat16: return std::int64_t{1} << 8;
    case Type::float32: return std::int64_t{1} << 24;
    default: return std::int64_t{1} << 53;
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
    const std::int64_t limit = exact_limit(p.type);
    if (is_integer(p.type)) {
      kind_ = p.reducing && p.op == Reduction::prod ? odd : bits;
    } else if (p.reducing && p.op == Reduction::prod) {
      kind_ = powers;
      gate_ = static_cast<std::uint32_t>((p.ranks + 7) / 8);
    } else if (p.reducing && is_sum(p.op) && p.ranks > limit) {
      kind_ = one_in;
      gate_ = static_cast<std::uint32_t>((p.ranks + limit - 1) / limit);
    } else {
      kind_ = range;
      const bool sum = p.reducing && is_sum(p.op);
      const std::int64_t top = std::min(limit / (sum ? p.ranks : 1), std::int64_t{1} << 20);
      while (std::int64_t{2} << bits_ <= top + 1) ++bits_;
    }
  }

  // operation(acc[i], value of `rank` at position first + i)
  template <class Operation>
  void apply(int rank, std::int64_t first, std::int64_t n, std::int64_t* acc,
             Operation operation) const {
    switch (kind_) {
      case bits: return loop(rank, first, n, acc, operation, [](auto h, auto) { return wide(h); });
      case odd: return loop(rank, first, n, acc, operation, [](auto h, auto) { return wide(h) | 1; });
      case range:
        return loop(rank, first, n, acc, operation, [shift = 32 - bits_](auto h, auto) {
          return static_cast<std::int64_t>(h >> shift);
        });
      case one_in:
        return loop(rank, first, n, acc, operation, [this](std::uint64_t h, std::uint64_t turn) {
          return static_cast<std::int64_t>(turn % gate_ == 0 ? h & 1 : 0);
        });
      case powers:
        return loop(rank, first, n, acc, operation, [this](std::uint64_t h, std::uint64_t turn) {
          const std::int64_t size = turn % gate_ == 0 && (h & 2) ? 2 : 1;
          return h & 1 ? -size : size;
        });
    }
  }

 private:
  enum Kind { bits, odd, range, one_in, powers };

  // 32 random bits to 64 (an odd multiplier keeps them apart).
  static std::int64_t wide(std::uint64_t h) {
    return static_cast<std::int64_t>((h << 32 | h) * 0x9e3779b97f4a7c15u >> 3);
  }

  template <class Operation, class Draw>
  void loop(int rank, std::int64_t first, std::int64_t n, std::int64_t* acc, Operation operation,
            Draw draw) const {
    const auto r = static_cast<std::uint32_t>(rank);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto position = static_cast<std::uint64_t>(first + i);
      const std::uint64_t h = mix(position, r);
      acc[i] = operation(acc[i], draw(h, position + r));
    }
  }

  Kind kind_;
  int bits_ = 0;
  std::uint32_t gate_ = 1;
};

template <class T>
T from_integer(std::int64_t value) {
  return static_cast<T>(value);
}
template <>
Half from_integer<Half>(std::int64_t value) {
  return narrow_half(static_cast<float>(value));
}
template <>
BFloat16 from_integer<BFloat16>(std::int64_t value) {
  return narrow_bfloat16(static_cast<float>(value));
}

template <class T>
void expected_tile(const Pattern& p, const Values& values, int source, std::int64_t first,
                   std::int64_t n, T* target) {
  std::int64_t acc[tile];
  const auto assign = [](std::int64_t, std::int64_t v) { return v; };
  const auto typed = [](std::int64_t v) {  // integers are compared as what they are in T
    if constexpr (std::is_integral_v<T>) return static_cast<std::int64_t>(static_cast<T>(v));
    return v;
  };
  values.apply(source == reduced ? 0 : source, first, n, acc, assign);
  for (std::int64_t i = 0; i < n; ++i) acc[i] = typed(acc[i]);
  const auto sum = [](std::int64_t a, std::int64_t v) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(v));
  };
  const auto product = [](std::int64_t a, std::int64_t v) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(v));
  };
  const auto least = [&](std::int64_t a, std::int64_t v) { return std::min(a, typed(v)); };
  const auto most = [&](std::int64_t a, std::int64_t v) { return std::max(a, typed(v)); };
  for (int rank = 1; source == reduced && rank < p.ranks; ++rank) {
    if (is_sum(p.op)) values.apply(rank, first, n, acc, sum);
    if (p.op == Reduction::prod) values.apply(rank, first, n, acc, product);
    if (p.op == Reduction::min) values.apply(rank, first, n, acc, least);
    if (p.op == Reduction::max) values.apply(rank, first, n, acc, most);
  }
  const bool average = source == reduced && p.op == Reduction::avg;
  for (std::int64_t i = 0; i < n; ++i) {
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

// work(first, n) for all tiles of [0, count).
template <class Work>
void for_tiles(std::int64_t count, int threads, Work work) {
  share_out((count + tile - 1) / tile, count > tile * 4 ? threads : 1, [&](std::int64_t k) {
    work(k * tile, std::min(tile, count - k * tile));
  });
}

template <class T>
void fill_typed(const Pattern& p, int source, std::int64_t first, std::int64_t count, byte* target,
                int threads) {
  const Values values(p);
  T* const to = reinterpret_cast<T*>(target);
  for_tiles(count, threads, [&](std::int64_t at, std::int64_t n) {
    expected_tile(p, values, source, first + at, n, to + at);
  });
}

template <class T>
Comparison compare_typed(const Pattern& p, int source, std::int64_t first, std::int64_t count,
                         const std::vector<const byte*>& buffers, std::size_t limit, int threads) {
  const Values values(p);
  Comparison result;
  result.wrong.assign(buffers.size(), 0);
  std::vector<std::vector<Difference>> found(buffers.size());
  std::mutex mutex;
  const auto before = [](const Difference& a, const Difference& b) { return a.element < b.element; };
  for_tiles(count, threads, [&](std::int64_t at, std::int64_t n) {
    T expected[tile];
    expected_tile(p, values, source, first + at, n, expected);
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      const T* got = reinterpret_cast<const T*>(buffers[b]) + at;
      if (!std::memcmp(got, expected, static_cast<std::size_t>(n) * sizeof(T))) continue;
      const std::lock_guard lock(mutex);
      for (std::int64_t i = 0, listed = 0; i < n; ++i) {
        if (!std::memcmp(got + i, expected + i, sizeof(T))) continue;
        ++result.wrong[b];
        if (listed++ < static_cast<std::int64_t>(limit))
          found[b].push_back({static_cast<int>(b), at + i, text(expected[i]), text(got[i])});
      }
      std::sort(found[b].begin(), found[b].end(), before);
      if (found[b].size() > limit) found[b].resize(limit);
    }
  });
  for (auto& list : found) result.first.insert(result.first.end(), list.begin(), list.end());
  return result;
}

}  // namespace

void fill(const Pattern& p, int source, std::int64_t first, std::int64_t count, byte* target,
          int threads) {
  with_type(p.type, [&](auto zero) {
    fill_typed<decltype(zero)>(p, source, first, count, target, threads);
  });
}

Comparison compare(const Pattern& p, int source, std::int64_t first, std::int64_t count,
                   const std::vector<const byte*>& buffers, int limit, int threads) {
  return with_type(p.type, [&](auto zero) {
    return compare_typed<decltype(zero)>(p, source, first, count, buffers,
                                         static_cast<std::size_t>(limit), threads);
  });
}

}  // namespace forestcoll
