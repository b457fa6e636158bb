#include <nanobind/nanobind.h>
NB_MODULE(_kernel, m) { m.doc() = "Max-flow loops of the solver."; }
