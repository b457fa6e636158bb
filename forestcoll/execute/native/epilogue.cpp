// What is done to complete sums: once to each element, in float32.

#include <array>
#include <cmath>

#include "engine.hpp"

namespace forestcoll {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the key 0.
Words philox(Words c) {
  std::uint32_t key[2] = {};
  for (int round = 0; round < 10; ++round, key[0] += 0x9e3779b9u, key[1] += 0xbb67ae85u) {
    const std::uint64_t a = 0xd2511f53ul * c[0], b = 0xcd9e8d57ul * c[2];
    c = {Bits(b >> 32) ^ c[1] ^ key[0], Bits(b), Bits(a >> 32) ^ c[3] ^ key[1], Bits(a)};
  }
  return c;
}

float round_to(Type type, float x) {
  return with_type(type, [&](auto zero) -> float {
    using A = Arithmetic<decltype(zero)>;
    return A::in(A::out(x));
  });
}

constexpr float beta[2] = {0.9f, 0.999f};

// Of the means of gradients and their squares, what so many turns have given them.
float share(int k, float turn) { return static_cast<float>(1 - std::pow(double{beta[k]}, turn)); }

// A step of the optimizer with the gradient g: the new weight.
float adam(float* state, Amount count, float rate, const float* shares, float g) {
  float &w = state[0], &m = state[count], &v = state[2 * count];
  m = beta[0] * m + (1 - beta[0]) * g;
  v = beta[1] * v + (1 - beta[1]) * g * g;
  return w -= rate * (m / shares[0]) / (std::sqrt(v / shares[1]) + 1e-8f);
}

}  // namespace

void Epilogue::apply(Type type, Amount first, Amount n, byte* data) const {
  with_type(type, [&](auto zero) {
    using A = Arithmetic<decltype(zero)>;
    auto* const to = reinterpret_cast<decltype(zero)*>(data);
    const float shares[] = {share(0, state[0]), share(1, state[0])};
    for (Amount k = 0; k < n; ++k) {
      const Amount at = first + k, inside = at % padded, i = at / padded * part + inside;
      if (inside >= part) continue;
      float x = A::in(to[k]);
      for (const auto& [work, number] : steps) {
        const float value = static_cast<float>(number);
        switch (static_cast<Work>(work)) {
          case Work::scale: x *= value; break;
          case Work::avg: x /= value; break;
          case Work::cast: x = round_to(static_cast<Type>(number), x); break;
          case Work::bias: x += state[1 + i % biases]; break;
          case Work::adam: x = adam(state + 1 + biases + i, count, value, shares, x); break;
          case Work::dropout: {
            const Words words = philox({Bits(i / 4), Bits(i / 4 >> 32), Bits(state[0]), 0});
            x = words[i % 4] < number * 0x1p32 ? 0 : x * static_cast<float>(1 / (1 - number));
          }
        }
      }
      to[k] = A::out(x);
    }
  });
}

}  // namespace forestcoll
