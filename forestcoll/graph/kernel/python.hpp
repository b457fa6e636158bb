// What files that Python calls take of nanobind, and how they refuse what it hands over.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "graph.hpp"

namespace forestcoll {

namespace nb = nanobind;
using Objects = std::vector<nb::object>;

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// Throws unless all of the list are numbers from 0 up to a count.
inline void require_below(const Ints& list, int count, const char* what) {
  for (int v : list) require(0 <= v && v < count, what);
}

}  // namespace forestcoll
