#include <nanobind/nanobind.h>
NB_MODULE(_engine, m) { m.doc() = "The interpreter of programs, on CPU threads."; }
