// The reductions as loops over arrays, one for each element type and operation, compiled for the
// instruction sets that processors may have; the best is chosen once, when a launch begins.

#include "engine.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define FC_AVX2 __attribute__((target("avx2,f16c"), always_inline)) static inline
#endif

namespace forestcoll {
namespace {

#define FC_LOOP __attribute__((always_inline)) static inline void

template <Reduction op, class T>
struct Combining {
  FC_LOOP run(byte* target, const byte* a, const byte* b, Amount bytes) {
    T* to = reinterpret_cast<T*>(target);
    const T* x = reinterpret_cast<const T*>(a);
    const T* y = reinterpret_cast<const T*>(b);
    const Amount n = bytes / Amount{sizeof(T)};
    for (Amount i = 0; i < n; ++i) to[i] = combine_elements<op>(x[i], y[i]);
  }
};

// The same for the set of instructions that has more.
template <Reduction op, class T>
struct CombiningWide : Combining<op, T> {};

template <class T>
struct Dividing {
  FC_LOOP run(byte* target, Amount bytes, int ranks) {
    T* to = reinterpret_cast<T*>(target);
    const Amount n = bytes / Amount{sizeof(T)};
    for (Amount i = 0; i < n; ++i) to[i] = divide_element(to[i], ranks);
  }
};

// Of plain types, one value after the other; of fp8, block after block. One of both is float32.
template <class From, class To>
struct Converting {
  FC_LOOP run(byte* target, const byte* source, Amount values) {
    To* to = reinterpret_cast<To*>(target);
    const From* from = reinterpret_cast<const From*>(source);
    if constexpr (std::is_same_v<From, Fp8>)
      for (Amount i = 0; i < values / block_values; ++i) widen_block(from[i], to + i * block_values);
    else if constexpr (std::is_same_v<To, Fp8>)
      for (Amount i = 0; i < values / block_values; ++i) narrow_block(from + i * block_values, to[i]);
    else
      for (Amount i = 0; i < values; ++i) to[i] = Arithmetic<To>::out(Arithmetic<From>::in(from[i]));
  }
};

#if defined(__x86_64__)
// Eight short floats as float32. The processor rounds to nearest even as well; NaNs may have other bits.
template <class T>
struct Lanes;

template <>
struct Lanes<Half> {
  FC_AVX2 __m256 load(const Half* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  FC_AVX2 void store(Half* at, __m256 value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
};

template <>
struct Lanes<BFloat16> {
  FC_AVX2 __m256 load(const BFloat16* at) {
    const __m128i shorts = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(shorts), 16));
  }
  FC_AVX2 void store(BFloat16* at, __m256 value) {
    const __m256i bits = _mm256_castps_si256(value), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, is_nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(packed));
  }
};

// In the order of operands that gives combine_elements' answer for NaNs and zeros.
template <Reduction op>
FC_AVX2 __m256 combine_lanes(__m256 x, __m256 y) {
  if constexpr (op == Reduction::prod) return _mm256_mul_ps(x, y);
  if constexpr (op == Reduction::min) return _mm256_min_ps(y, x);
  if constexpr (op == Reduction::max) return _mm256_max_ps(y, x);
  return _mm256_add_ps(x, y);
}

// Short floats eight at a time, and the rest one by one.
template <Reduction op, class T>
  requires(sizeof(T) == 2)
struct CombiningWide<op, T> {
  FC_AVX2 void run(byte* target, const byte* a, const byte* b, Amount bytes) {
    constexpr Amount step = 16;  // bytes of eight
    for (; bytes >= step; bytes -= step, target += step, a += step, b += step) {
      const __m256 x = Lanes<T>::load(reinterpret_cast<const T*>(a));
      const __m256 y = Lanes<T>::load(reinterpret_cast<const T*>(b));
      Lanes<T>::store(reinterpret_cast<T*>(target), combine_lanes<op>(x, y));
    }
    Combining<op, T>::run(target, a, b, bytes);
  }
};
template <class Loop, class... Given>
__attribute__((target("avx2,f16c"))) void run_avx2(Given... given) {
  Loop::run(given...);
}
#endif

template <class Loop, class... Given>
void run_plain(Given... given) {
  Loop::run(given...);
}

// A loop as a function: `Wide`, for the instructions that few processors lack, where this one has them.
template <class Loop, class Wide = Loop>
struct Best {
  template <class... Given>
  operator Function<Given...>() const {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return run_avx2<Wide, Given...>;
#endif
    return run_plain<Loop, Given...>;
  }
};

template <class Function>
auto with_any(Type type, Function function) {
  return type == Type::fp8 ? function(Fp8{}) : with_type(type, function);
}

}  // namespace

Amount wire_bytes(Type type) {
  return with_any(type, [](auto zero) { return Amount{sizeof zero}; });
}

Amount wire_values(Type type) { return type == Type::fp8 ? block_values : 1; }

Convert widen_function(Type type) {
  return with_any(type, [](auto zero) -> Convert { return Best<Converting<decltype(zero), float>>(); });
}

Convert narrow_function(Type type) {
  return with_any(type, [](auto zero) -> Convert { return Best<Converting<float, decltype(zero)>>(); });
}

Combine combine_function(Type type, Reduction op) {
  return with_any(type, [&](auto zero) {
    return with_reduction(op, [&](auto chosen) -> Combine {
      using T = decltype(zero);
      return Best<Combining<decltype(chosen)::op, T>, CombiningWide<decltype(chosen)::op, T>>();
    });
  });
}

Divide divide_function(Type type) {
  return with_type(type, [](auto zero) -> Divide { return Best<Dividing<decltype(zero)>>(); });
}

}  // namespace forestcoll
