// Random numbers that are the same everywhere.
#pragma once

#include <cstdint>
#include <random>

namespace forestcoll {

// std::mt19937 over words of 32 bits: where uint_fast32_t has 64, the standard's own gives the same
// numbers at half the speed, and what is computed with them is of 64 bits as well.
using Random = std::mersenne_twister_engine<std::uint32_t, 32, 624, 397, 31, 0x9908b0dfu, 11,
                                            0xffffffffu, 7, 0x9d2c5680u, 15, 0xefc60000u, 18,
                                            1812433253u>;

}  // namespace forestcoll
