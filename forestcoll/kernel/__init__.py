"""C++ loops over max-flow (`_kernel`); arrays of integers in, arrays of integers out, the GIL released."""
