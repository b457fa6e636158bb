// Element types and reductions, one definition for CPU, CUDA and HIP.
//
// float16 and bfloat16 are added as float32 and rounded to nearest even after every operation, as the
// GPU runtimes do. Integers wrap around (two's complement).
//
// An average is the sum, divided by the number of ranks once everything is summed. Integers: the
// wrapped sum, divided towards zero, as NCCL does (its ncclDevSumPostDiv). Floats: one division,
// rounded once; NCCL instead multiplies every contribution by 1/ranks in the element's type before
// it adds, which gives the same bits where the number of ranks is a power of two and nothing is
// subnormal, and else may differ in the last ones (NVIDIA/nccl, enqueue.cc: hostToDevRedOp).

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "interpreter.hpp"

// Inlined everywhere: a loop over elements is compiled for several instruction sets.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define FC_ELEMENT __device__ __forceinline__
#else
#define FC_ELEMENT __attribute__((always_inline)) inline
#endif

namespace forestcoll {

// In the order of `type_names` in module.cpp.
enum class Type : int { float32, float16, bfloat16, float64, int8, uint8, int32, int64, fp8 };

// The operations, but for `avg`: it is `sum` until the sums are complete.
#define FC_REDUCTIONS(USE) USE(sum) USE(prod) USE(min) USE(max)
#define FC_REDUCTION_MEMBER(name) name,
enum class Reduction : int { FC_REDUCTIONS(FC_REDUCTION_MEMBER) avg };
#undef FC_REDUCTION_MEMBER

using Bits = std::uint32_t;  // of a float32

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

// Values on the wire (never a caller's): e4m3 with one power of two for all, inline, so that a block is
// an element as any other to plans, slots and wires. `scale` is the power's exponent as float32 has it,
// as in OCP's MXFP8; 255: a value was infinite or none, and all count as none.
constexpr int block_values = 32;
struct Fp8 {
  std::uint8_t scale, codes[block_values];
};

FC_ELEMENT Bits float_bits(float value) {
  Bits bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

FC_ELEMENT float bits_float(Bits bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// `a` if `condition` else `b`, as arithmetic: compilers turn the usual form into a branch where one side
// is a float operation, and then loops over it do not vectorise.
FC_ELEMENT Bits choose(bool condition, Bits a, Bits b) {
  return b ^ ((a ^ b) & (0u - condition));
}

// Exact. Without branches, so that loops over it vectorise: the bits are moved to their place in a
// float32 and the exponent's bias is corrected by a multiplication, which also makes subnormals normal.
FC_ELEMENT float widen(Half h) {
  const Bits magnitude = (h.bits & 0x7fffu) << 13;
  const Bits scaled = float_bits(bits_float(magnitude) * bits_float(0x77800000u));  // 2^112
  const Bits special = h.bits & 0x7c00u;
  const Bits infinite = choose(special == 0x7c00u, 0x7f800000u, 0u);
  return bits_float(scaled | infinite | (h.bits & 0x8000u) << 16);
}

// Rounds to nearest even; too large becomes infinite, NaN stays NaN.
template <class T>
FC_ELEMENT T narrow(float value);

template <>
FC_ELEMENT Half narrow<Half>(float value) {
  const Bits bits = float_bits(value);
  const Bits sign = bits >> 16 & 0x8000u;
  const Bits magnitude = bits & 0x7fffffffu;
  // Normal result: rebias the exponent, round half to even by adding just under half and the last bit.
  const Bits normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // Subnormal result: adding 0.5 lets the float32 unit round at the bit that counts.
  const Bits small = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
  const Bits special = choose(magnitude > 0x7f800000u, 0x7e00u, 0x7c00u);
  const Bits finite = choose(magnitude < 0x38800000u, small, normal);
  const Bits result = choose(magnitude >= 0x47800000u, special, finite);
  return {static_cast<std::uint16_t>(result | sign)};
}

FC_ELEMENT float widen(BFloat16 b) { return bits_float(static_cast<Bits>(b.bits) << 16); }

template <>
FC_ELEMENT BFloat16 narrow<BFloat16>(float value) {
  const Bits bits = float_bits(value);
  const Bits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const Bits nan = bits >> 16 | 0x40u;
  return {static_cast<std::uint16_t>(choose((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded))};
}

// The largest value keeps its place in [2^7, 2^8): none saturates, and those below 2^-13 of it lose bits.
constexpr Bits block_top = 7;

// Rounds each of `values` to nearest even. e4m3: exponent bias 7, subnormals are multiples of 2^-9.
FC_ELEMENT void narrow_block(const float* values, Fp8& block) {
  Bits top = block_top + 1;
  for (int i = 0; i < block_values; ++i) {
    const Bits exponent = float_bits(values[i]) >> 23 & 0xffu;
    top = exponent > top ? exponent : top;
  }
  const bool finite = top < 255;
  const Bits scale = top - block_top;
  block.scale = finite ? scale : 255;
  const float shrink = bits_float(finite ? (254 - scale) << 23 : 0);
  for (int i = 0; i < block_values; ++i) {
    const Bits bits = float_bits(values[i] * shrink), magnitude = bits & 0x7fffffffu;
    const Bits normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
    const Bits small = float_bits(bits_float(magnitude) + 16384.0f) - 0x46800000u;  // steps of 2^-9
    const Bits code = choose(magnitude < 0x3c800000u, small, normal);
    block.codes[i] = static_cast<std::uint8_t>(code | (bits >> 24 & 0x80u));
  }
}

// Exact.
FC_ELEMENT void widen_block(const Fp8& block, float* values) {
  const bool finite = block.scale < 255;
  const float grow = bits_float(finite ? Bits{block.scale} << 23 : 0x7fc00000u);
  for (int i = 0; i < block_values; ++i) {
    const Bits code = block.codes[i];
    const float magnitude = bits_float((code & 0x7fu) << 20) * bits_float(247u << 23);  // 2^120
    values[i] = bits_float(float_bits(magnitude) | (code & 0x80u) << 24) * grow;
  }
}

// function(T{}) for the C++ type of `type`: what is compiled for every type is chosen here.
template <class Function>
FC_ELEMENT auto with_type(Type type, Function function) {
  switch (type) {
    case Type::float16: return function(Half{});
    case Type::bfloat16: return function(BFloat16{});
    case Type::float64: return function(double{});
    case Type::int8: return function(std::int8_t{});
    case Type::uint8: return function(std::uint8_t{});
    case Type::int32: return function(std::int32_t{});
    case Type::int64: return function(std::int64_t{});
    default: return function(float{});
  }
}

FC_ELEMENT Amount element_bytes(Type type) {
  return with_type(type, [](auto zero) { return Amount{sizeof zero}; });
}

// How a type is calculated with: in `Wide`, or as it is. `Modular` is the type in which sums and products
// wrap, unsigned for integers, so that nothing can overflow into undefined behaviour.
template <class T>
struct Arithmetic {
  using Wide = T;
  using Unsigned = std::conditional_t<sizeof(T) == 8, std::uint64_t, Bits>;
  using Modular = std::conditional_t<std::is_integral_v<T>, Unsigned, T>;
  static FC_ELEMENT Wide in(T value) { return value; }
  static FC_ELEMENT T out(Wide value) { return value; }
};

template <class T>
struct AsFloat {
  using Wide = float;
  using Modular = float;
  static FC_ELEMENT Wide in(T value) { return widen(value); }
  static FC_ELEMENT T out(Wide value) { return narrow<T>(value); }
};

template <>
struct Arithmetic<Half> : AsFloat<Half> {};
template <>
struct Arithmetic<BFloat16> : AsFloat<BFloat16> {};

template <Reduction op, class T>
FC_ELEMENT T combine_elements(T a, T b) {
  using A = Arithmetic<T>;
  using M = typename A::Modular;
  const typename A::Wide x = A::in(a), y = A::in(b);
  if constexpr (op == Reduction::sum) return A::out(M(x) + M(y));
  if constexpr (op == Reduction::prod) return A::out(M(x) * M(y));
  if constexpr (op == Reduction::min) return A::out(y < x ? y : x);
  if constexpr (op == Reduction::max) return A::out(x < y ? y : x);
}

// Block by block: both widened, combined as float32, rounded once.
template <Reduction op>
FC_ELEMENT Fp8 combine_elements(const Fp8& a, const Fp8& b) {
  float x[block_values], y[block_values];
  widen_block(a, x);
  widen_block(b, y);
  for (int i = 0; i < block_values; ++i) x[i] = combine_elements<op>(x[i], y[i]);
  Fp8 result;
  narrow_block(x, result);
  return result;
}

// What is compiled for every operation is chosen by the type of the argument of `function`.
template <Reduction value>
struct Operation {
  static constexpr Reduction op = value;
};

// function(Operation<op>{}); `avg` as the sum that it is until that is complete.
template <class Function>
FC_ELEMENT auto with_reduction(Reduction op, Function function) {
  switch (op) {
#define FC_REDUCTION_CASE(name) \
  case Reduction::name: return function(Operation<Reduction::name>{});
    FC_REDUCTIONS(FC_REDUCTION_CASE)
#undef FC_REDUCTION_CASE
    case Reduction::avg: break;
  }
  return function(Operation<Reduction::sum>{});
}

// What `avg` does to a complete sum.
template <class T>
FC_ELEMENT T divide_element(T sum, int ranks) {
  using A = Arithmetic<T>;
  return A::out(A::in(sum) / ranks);
}

}  // namespace forestcoll
