// Where everything stood when a launch ended.

#pragma once

#include "machine.hpp"

namespace forestcoll {

std::vector<Stop> stops_of(const Machine& machine);                // of all thread blocks
std::vector<Result::Leftover> leftovers_of(const Machine& machine);  // after one that was done

}  // namespace forestcoll
