// What the files that bind the kernel to Python share.
#pragma once

#include <nanobind/nanobind.h>

#include "contract.hpp"

namespace forestcoll {

void bind_rehanging(nanobind::module_& m);  // in rehanging_module.cpp

}  // namespace forestcoll
