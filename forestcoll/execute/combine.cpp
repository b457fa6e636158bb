// The reductions as loops over arrays, one for each element type and operation, compiled for the
// instruction sets that processors may have; the best is chosen once, when a launch begins.

#include "engine.hpp"

namespace forestcoll {
namespace {

template <Reduction op, class T>
[[gnu::always_inline]] inline void combine_loop(byte* target, const byte* a, const byte* b,
                                                std::int64_t bytes) {
  T* to = reinterpret_cast<T*>(target);
  const T* x = reinterpret_cast<const T*>(a);
  const T* y = reinterpret_cast<const T*>(b);
  const std::int64_t n = bytes / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < n; ++i) to[i] = combine_elements<op>(x[i], y[i]);
}

template <class T>
[[gnu::always_inline]] inline void divide_loop(byte* target, std::int64_t bytes, int ranks) {
  T* to = reinterpret_cast<T*>(target);
  const std::int64_t n = bytes / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < n; ++i) to[i] = divide_element(to[i], ranks);
}

// What every processor of the kind has.
struct Plain {
  template <Reduction op, class T>
  static void combine(byte* target, const byte* a, const byte* b, std::int64_t bytes) {
    combine_loop<op, T>(target, a, b, bytes);
  }
  template <class T>
  static void divide(byte* target, std::int64_t bytes, int ranks) {
    divide_loop<T>(target, bytes, ranks);
  }
};

#if defined(__x86_64__)
struct Avx2 {
  template <Reduction op, class T>
  [[gnu::target("avx2")]] static void combine(byte* target, const byte* a, const byte* b,
                                              std::int64_t bytes) {
    combine_loop<op, T>(target, a, b, bytes);
  }
  template <class T>
  [[gnu::target("avx2")]] static void divide(byte* target, std::int64_t bytes, int ranks) {
    divide_loop<T>(target, bytes, ranks);
  }
};
#endif

template <class Set, class T>
Combine of_type(Reduction op) {
  switch (op) {
    case Reduction::sum:
    case Reduction::avg: return Set::template combine<Reduction::sum, T>;
    case Reduction::prod: return Set::template combine<Reduction::prod, T>;
    case Reduction::min: return Set::template combine<Reduction::min, T>;
    case Reduction::max: return Set::template combine<Reduction::max, T>;
  }
  return nullptr;
}

// function(set) for the best instruction set of this processor
template <class Function>
auto with_set(Function function) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return function(Avx2{});
#endif
  return function(Plain{});
}

}  // namespace

Combine combine_function(Type type, Reduction op) {
  return with_set([&](auto set) {
    return with_type(type, [&](auto zero) { return of_type<decltype(set), decltype(zero)>(op); });
  });
}

Divide divide_function(Type type) {
  return with_set([&](auto set) {
    return with_type(type, [&](auto zero) -> Divide {
      return decltype(set)::template divide<decltype(zero)>;
    });
  });
}

}  // namespace forestcoll
