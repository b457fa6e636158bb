// The reductions as loops over arrays, one for each element type and operation.

#include "engine.hpp"

namespace forestcoll {
namespace {

template <Reduction op, class T>
void combine_array(byte* target, const byte* a, const byte* b, std::int64_t bytes) {
  T* to = reinterpret_cast<T*>(target);
  const T* x = reinterpret_cast<const T*>(a);
  const T* y = reinterpret_cast<const T*>(b);
  const std::int64_t n = bytes / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < n; ++i) to[i] = combine_elements<op>(x[i], y[i]);
}

template <class T>
Combine of_type(Reduction op) {
  switch (op) {
    case Reduction::sum: return combine_array<Reduction::sum, T>;
    case Reduction::prod: return combine_array<Reduction::prod, T>;
    case Reduction::min: return combine_array<Reduction::min, T>;
    case Reduction::max: return combine_array<Reduction::max, T>;
  }
  return nullptr;
}

}  // namespace

Combine combine_function(Type type, Reduction op) {
  switch (type) {
    case Type::float32: return of_type<float>(op);
    case Type::float16: return of_type<Half>(op);
    case Type::bfloat16: return of_type<BFloat16>(op);
    case Type::float64: return of_type<double>(op);
    case Type::int8: return of_type<std::int8_t>(op);
    case Type::uint8: return of_type<std::uint8_t>(op);
    case Type::int32: return of_type<std::int32_t>(op);
    case Type::int64: return of_type<std::int64_t>(op);
  }
  return nullptr;
}

std::int64_t element_bytes(Type type) {
  switch (type) {
    case Type::int8:
    case Type::uint8: return 1;
    case Type::float16:
    case Type::bfloat16: return 2;
    case Type::float32:
    case Type::int32: return 4;
    case Type::float64:
    case Type::int64: return 8;
  }
  return 0;
}

}  // namespace forestcoll
