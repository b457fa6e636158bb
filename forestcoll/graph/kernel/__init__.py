"""C++ loops over max-flow (`_kernel`): arrays of integers in and out, the GIL released."""
