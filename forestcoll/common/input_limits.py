"""Limits on input: what a file of any origin may cost before it is refused. All of them stand here.

They keep one promise: no file under 1 MB takes more than `SECONDS` of processor time or `MEMORY`
bytes to be read and checked, whatever it holds. Counts (bytes, nodes, trees, digits, steps) refuse
the same input on every machine, before it has cost anything; the command line enforces `SECONDS`
and `MEMORY` on top, for what no count foresaw, and grants more to larger files in proportion. A
refusal names its limit.

Limits of the runtimes and of their formats are no limits on input: they stand with the format.
"""

from __future__ import annotations


class Limit(int):
    """The most there may be of something; an integer that knows its name."""

    name: str

    def __new__(cls, most: int, name: str) -> Limit:
        """`most`, called `name`."""
        limit = super().__new__(cls, most)
        limit.name = name
        return limit

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.name

    @property
    def note(self) -> str:
        """`"(input limit NODES: 200,000)"`, for the end of a refusal."""
        return f"(input limit {self.name}: {self:,})"


# A whole file, read and checked (ui/cli/guard.py)
SECONDS = Limit(10, "SECONDS")  # of processor time, for a megabyte or part of one
MEMORY = Limit(2**30, "MEMORY")  # bytes, for a megabyte or part of one

# Bytes that are read at most
FILE_BYTES = Limit(2**30, "FILE_BYTES")  # forests, groups, standard input
PLAN_BYTES = Limit(2**28, "PLAN_BYTES")  # a plan, a file of a plan set
TOPOLOGY_BYTES = Limit(24 * 2**20, "TOPOLOGY_BYTES")
DUMP_BYTES = Limit(8 * 2**20, "DUMP_BYTES")  # topologies that other programs wrote

# Shape of the text
YAML_VALUES = Limit(2_500_000, "YAML_VALUES")
YAML_DEPTH = Limit(16, "YAML_DEPTH")
DUMP_ELEMENTS = Limit(100_000, "DUMP_ELEMENTS")
DUMP_DEPTH = Limit(64, "DUMP_DEPTH")
PLAN_VALUES = Limit(2**23, "PLAN_VALUES")  # a JSON value takes up to some 100 bytes when read
PLAN_DEPTH = Limit(32, "PLAN_DEPTH")

# Numbers
DIGITS = Limit(40, "DIGITS")  # of a numerator or denominator in a topology, and before the point
# of a bandwidth or its inverse in any file, so that doubles hold what follows from them
FOREST_DIGITS = Limit(400, "FOREST_DIGITS")  # the same in a forest or groups file
COMMON_DIGITS = Limit(1000, "COMMON_DIGITS")  # of a common denominator, and of a sum, in any file
PLAN_DIGITS = Limit(25, "PLAN_DIGITS")

# Topologies
NODES = Limit(200_000, "NODES")
LINKS = Limit(1_000_000, "LINKS")
PARALLEL_LINKS = Limit(1_000_000, "PARALLEL_LINKS")  # `count` of a link
LOOP_INDICES = Limit(8, "LOOP_INDICES")
LOOP_ROUNDS = Limit(2_000_000, "LOOP_ROUNDS")
EXPRESSION_STEPS = Limit(20_000_000, "EXPRESSION_STEPS")  # operations and names, all rounds
EXPRESSION_LENGTH = Limit(200, "EXPRESSION_LENGTH")  # characters
EXPRESSION_DEPTH = Limit(24, "EXPRESSION_DEPTH")
RANGE_VALUES = Limit(200_000, "RANGE_VALUES")

MATRIX_DEVICES = Limit(256, "MATRIX_DEVICES")  # of nvidia-smi's and rocm-smi's tables
MATRIX_OBJECTS = Limit(512, "MATRIX_OBJECTS")  # of hwloc's matrices
DUMP_LINE = Limit(1000, "DUMP_LINE")  # characters of a line of ibnetdiscover
SETTING_LENGTH = Limit(20_000, "SETTING_LENGTH")  # characters of a value of --set
NESTED_DEVICES = Limit(8, "NESTED_DEVICES")  # of InfraGraph
MEASURED_RANKS = Limit(4096, "MEASURED_RANKS")

# Forests
TREES = Limit(250_000, "TREES")  # that the symmetry of a file may expand to
TREE_EDGES = Limit(4_000_000, "TREE_EDGES")  # the same, and when a compact forest is written out

PATH_NODES = Limit(8_000_000, "PATH_NODES")  # nodes on the paths of those edges
GENERATORS = Limit(64, "GENERATORS")  # of the symmetries that trees have images under
IMAGE_NODES = Limit(8_000_000, "IMAGE_NODES")  # nodes times symmetries of a bound
PROOF_STEPS = Limit(100_000_000, "PROOF_STEPS")  # links and ranks times node sets of a bound
GROUP_STEPS = Limit(2**24, "GROUP_STEPS")  # elements times nodes of a group that keeps some ranks
LENGTH_STEPS = Limit(20_000_000, "LENGTH_STEPS")  # links times sources of an all-to-all's proof

# Plans
RANKS = Limit(16384, "RANKS")
BLOCKS = Limit(4096, "BLOCKS")  # thread blocks of a rank
INSTRUCTIONS = Limit(2**20, "INSTRUCTIONS")
CHUNKS = Limit(2**18, "CHUNKS")  # of one buffer, in MSCCL++ JSON
SLICES = Limit(64, "SLICES")  # that the instructions' parts cut a chunk into
LOCATIONS = Limit(4_000_000, "LOCATIONS")  # slices of chunks, all buffers
CHECK_STEPS = Limit(12_000_000, "CHECK_STEPS")  # a symbolic run's steps on chunks
