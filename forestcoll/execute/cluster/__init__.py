"""A plan's ranks in several processes, on one machine or many: who they are, how they agree.

`launchers` finds out from the environment which process this one is; `group` has them speak with
each other; `sockets` connects each with each; `wire.hpp` is what their thread blocks do to each
other's memory.
"""
