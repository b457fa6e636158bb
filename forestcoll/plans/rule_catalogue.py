"""Every rule of the linter: its short name, how bad breaking it is, and what cures it.

Names begin with what they concern: XML- both runtimes of MSCCL XML, RCCL- RCCL alone, MPP- MSCCL++,
RUN- what shows when the plan is run symbolically. docs/reference/rules.md lists them all.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Rule(NamedTuple):
    """`error`: refused, hangs, corrupts or adds wrongly; `warning`: unused, slow or unreliable."""

    name: str
    severity: Severity
    what: str  # the rule, in a line
    cure: str  # what to do about it


RULES: dict[str, Rule] = {}


def _add(severity: Severity, *rows: tuple[str, str, str]) -> None:
    for name, what, cure in rows:
        assert name not in RULES, name
        RULES[name] = Rule(name, severity, what, cure)


# --- MSCCL XML: the text --------------------------------------------------------------------------

_add(
    "error",
    ("XML-SYNTAX", "the file is well-formed XML, from <algo> to </algo>",
     "write the file anew; often it was cut off"),
    ("XML-PROLOG", "the file begins with <algo>: the loaders take a prolog for the first element",
     "delete <?xml ...?> and <!DOCTYPE ...>"),
    ("XML-WHITESPACE", "between tags stand spaces and line ends only",
     "indent with spaces: the loaders stop at a tab"),
    ("XML-TAG", "a tag is one line: name=\"value\" with double quotes, one space between",
     "write the tag on one line, with double quotes and no space around '='"),
    ("XML-TEXT", "there is no text outside the tags", "delete it"),
    ("XML-ROOT-ELEMENT", "the outermost element is <algo>", "give the loader the plan itself"),
    ("XML-COMMENT", "a comment begins with a space: the loaders look for '=' in its first word",
     "write a space behind <!--"),
    ("XML-VALUE-LENGTH", "a value has at most 255 bytes, a name at most 254: the loaders end "
     "there, or write beyond", "shorten it"),
    ("XML-MISSING", "every attribute that the loaders ask for is there", "add it"),
    ("XML-NUMBER", "numbers are integers: the loaders read anything else as 0, without a word",
     "write a decimal integer"),
    ("XML-CHILDREN", "an element has at most 1,024 children: the loader writes beyond",
     "use fewer thread blocks or steps"),
    ("XML-NODES", "one rank loads at most 4,096 elements: algo, every gpu, its own tbs and steps",
     "use fewer trees, or larger chunks"),
)  # fmt: skip
_add(
    "warning",
    ("XML-SPACES", "one space stands between attributes: each further one takes the place of one",
     "use one space"),
    ("XML-ATTRIBUTES", "a tag has at most 16 attributes: the loaders drop the others",
     "drop the attributes that no loader reads"),
    ("XML-OCTAL", "numbers have no leading 0: the loaders read them as octal",
     "write the decimal number without leading 0"),
    ("XML-ELEMENT", "algo holds gpus, a gpu tbs, a tb steps; the loaders skip anything else",
     "delete it"),
)  # fmt: skip

# --- MSCCL XML: algo and gpu ----------------------------------------------------------------------

_add(
    "error",
    ("XML-COLLECTIVE", "coll is a word that the loaders know",
     "write allreduce, allgather, reducescatter, broadcast, reduce or alltoall"),
    ("XML-PROTOCOL", "proto is Simple, LL or LL128", "write one of the three, spelled like that"),
    ("XML-CHUNKS-ZERO", "nchunksperloop is at least 1: the runtime divides by it",
     "write the number of chunks of the whole data"),
    ("XML-CHUNKS-SHARE", "every rank has as many of the chunks as the others",
     "make nchunksperloop a multiple of ngpus"),
    ("XML-SIZE-RANGE", "minBytes and maxBytes leave a size: 0 <= minBytes <= maxBytes < 2^63, or "
     "maxBytes 0 for no limit", "correct the two; no call would ever use the plan"),
    ("XML-PLACES", "inplace or outofplace is 1", "set one: no call would ever use the plan"),
    ("XML-FLAG", "inplace, outofplace and hasdep are 0 or 1", "write 0 or 1"),
    ("XML-NGPUS", "ngpus is the number of ranks, from 1 to 1,024", "correct it"),
    ("XML-NCHANNELS", "nchannels covers every channel in use and no more than the runtime has",
     "set nchannels to the largest chan plus 1"),
    ("XML-GPU-ID", "gpus have the ids 0 to ngpus - 1, each once", "number them so"),
    ("XML-GPU-MISSING", "every rank has a gpu with thread blocks: an empty launch fails",
     "give every rank at least one thread block with a step"),
    ("XML-CHUNKS-NEGATIVE", "buffers have no negative number of chunks", "correct the number"),
)  # fmt: skip
_add(
    "warning",
    ("XML-PLACES-ROOTED", "broadcast and reduce are for calls in place and out of place: each rank "
     "looks at its own buffers, and ranks that differ take different plans "
     "(msccl_lifecycle.cc:316-339)", "set inplace and outofplace to 1, or hand both buffers alike"),
    ("XML-GPU-CHUNKS", "i_chunks and o_chunks say what nchunksperloop makes of them",
     "correct them: the loaders bound offsets by them, and size chunks by nchunksperloop"),
    ("XML-ROUNDS", "a call goes through each chunk in at most 65,536 rounds: of larger ones "
     "dependencies wait for ever", "set maxBytes to what is right"),
    ("XML-NCHANNELS-SPARE", "nchannels is no larger than needed: it raises the channels of the "
     "whole communicator", "set nchannels to the largest chan plus 1"),
)  # fmt: skip
_add(
    "note",
    ("XML-SIZES", "calls of other sizes run the library's own algorithm, without a word",
     "pad the call, or take a schedule of fewer chunks"),
    ("XML-ROOT-IGNORED", "the runtime does not look at the root: it takes the plan for any",
     "call it with this root only"),
    ("XML-PROXY-STEPS", "broadcast and reduce over the network count Simple's steps otherwise",
     "between boxes use LL128, or the library's own"),
    ("XML-LL128", "LL128 is for links that keep 128 bytes together: NVLink of sm_70 to sm_90, "
     "Infinity Fabric of gfx90a; plans run it anywhere (tuning.cc:324-335; RCCL's: 509-516)",
     "elsewhere take --protocol LL"),
    ("XML-SCRATCH-SPARE", "scratch is as large as the steps use", "lower s_chunks"),
)  # fmt: skip

# --- MSCCL XML: tb --------------------------------------------------------------------------------

_add(
    "error",
    ("XML-TB-ID", "thread blocks have the ids 0, 1, 2 ..., each once", "number them so"),
    ("XML-TB-COUNT", "a rank has at most 1,024 thread blocks (msccl)", "use fewer trees"),
    ("XML-TB-SMS", "all thread blocks of a rank run at once: no more than the GPU's SMs",
     "use fewer trees; or say how many SMs there are with --sms"),
    ("RCCL-TB-COUNT", "RCCL holds 64 thread blocks per rank",
     "use fewer trees, or several a thread block"),
    ("XML-PEER", "recv and send are -1 or another rank of the plan: the loader does not check",
     "name a rank from 0 to ngpus - 1 that is not the own one"),
    ("XML-PARTNER", "whoever sends to a rank on a channel has a thread block there that receives "
     "from it on that channel, and the other way round",
     "give both ends the same chan, and each other's rank as peer"),
    ("XML-CHANNEL", "chan is from 0 to below nchannels, and below what the runtime has",
     "renumber the channels from 0, and set nchannels"),
    ("XML-CHANNEL-LOAD", "a channel serves at most 32 thread blocks of a direction",
     "spread the thread blocks over more channels"),
    ("XML-CONNECTION-SHARED", "one thread block owns a (peer, channel, direction): two would share "
     "the counters of one queue", "give one of them another channel"),
)  # fmt: skip
_add(
    "warning",
    ("XML-TB-EMPTY", "a thread block has steps: it takes an SM", "drop it"),
    ("XML-PEER-IDLE", "a peer that is set is used: it takes a connection and its buffers",
     "set recv or send to -1"),
)  # fmt: skip

# --- MSCCL XML: step ------------------------------------------------------------------------------

_add(
    "error",
    ("XML-STEP-TYPE", "type is one of s, r, rcs, rrs, rrc, rrcs, cpy, re, nop", "use one of them"),
    ("RCCL-FUSED", "RCCL of ROCm 6.1 and newer runs s, r, re and cpy only",
     "lower it: rcs to r and s, rrc to r into scratch and re, rrs and rrcs to r, re and s"),
    ("XML-STEP-NUMBER", "s counts the steps of a thread block from 0, in their order",
     "number them so: order is that of the file, whatever s says"),
    ("XML-STEP-COUNT", "a thread block has at most 64 steps",
     "use more thread blocks, or larger chunks"),
    ("XML-BUFFER", "srcbuf and dstbuf are i, o or s", "use one of them"),
    ("XML-COUNT", "cnt is 1 to 71", "split the step"),
    ("XML-BOUNDS", "offset and cnt stay within the buffer: the loader looks at the offset alone, "
     "and for rrc not at all", "correct offset or cnt, or enlarge the buffer"),
    ("XML-OFFSET-16", "offsets fit 16 bits", "use fewer chunks"),
    ("XML-DIRECTION", "a step that sends has a send peer, one that receives a recv peer",
     "set it at the thread block"),
    ("XML-MESSAGE-LOST", "all that is sent is received, and all that is waited for is sent",
     "add the missing step at the other end"),
    ("XML-MESSAGE-LENGTH", "the n-th send of a connection has the cnt of its n-th receive",
     "make them equal, or bring both ends in one order"),
    ("XML-DEP", "a dependency names a step of a thread block of the rank that comes before",
     "correct depid and deps"),
    ("XML-DEP-WRAP", "a thread block that others wait for has an id up to 127: the device keeps "
     "it in 8 bits", "give those thread blocks the lowest ids"),
    ("XML-DEP-FLAG", "a step that others wait for has hasdep=1, or they wait for ever",
     "set hasdep=1"),
    ("XML-NOP-BARE", "after nops that wait, the step itself waits for something",
     "give the last dependency to the step itself"),
    ("XML-NOP-EMPTY", "a nop waits for something: the runtime drops it and counts steps without it",
     "delete the nop and renumber"),
    ("XML-RE-COUNT", "neighbouring re on one place have one cnt: the runtime joins them and takes "
     "the last cnt for both", "make them equal, or set hasdep=1 on the first"),
    ("XML-RE-JOINED", "at most 15 re on one place are neighbours: msccl-executor-nccl joins them, "
     "and adds up 16 operands, the place among them (msccl_parser.cc:636, msccl_kernel.cu:289, "
     "common_kernel.h:123); RCCL adds all", "set hasdep=1 on the fifteenth"),
)  # fmt: skip
_add(
    "warning",
    ("XML-DEP-HALF", "depid and deps say something together", "set both, or both to -1"),
    ("XML-DEP-LATE", "a step that others wait for raises its own flag",
     "set hasdep=1 on it; they wait for a later step now"),
    ("XML-NOP-TAIL", "a nop comes before a step", "delete it: the runtime drops what it waits for"),
)  # fmt: skip
_add(
    "note",
    ("XML-FLAG-SPARE", "only steps that others wait for raise a flag: each costs a fence",
     "set hasdep=0 where nobody waits"),
)  # fmt: skip

# --- MSCCL++: the text and the head ---------------------------------------------------------------

_add(
    "error",
    ("MPP-SYNTAX", "the file is well-formed JSON, and an object", "write it anew"),
    ("MPP-DUPLICATE-KEY", "a key stands once in an object", "delete one of the two"),
    ("MPP-MISSING", "every key that the loader asks for is there: it aborts otherwise", "add it"),
    ("MPP-SOURCE", "the file is a plan, not what plans are made from",
     "name a plan; 'forestcoll synthesize' writes them beside it"),
    ("MPP-TYPE", "values have the types that the loader reads", "write the right type"),
    ("MPP-COLLECTIVE", "collective is a word that the runtime matches calls with",
     "write allreduce, allgather, reducescatter, broadcast or reduce"),
    ("MPP-ALIGNMENT", "buffer_alignment is a multiple of 16: 0 crashes, and the kernels work in "
     "16 bytes", "write 16"),
    ("MPP-THREADS", "num_threads_per_block is 32 to 1,024, a multiple of 32", "write 1024"),
    ("MPP-MIN-SIZE", "min_message_size is 0 to 2^31 - 1: the loader reads a 32-bit number",
     "lower it"),
    ("MPP-SIZE-RANGE", "some size lies between min_message_size and max_message_size and divides "
     "into the chunks", "correct the two, or leave max_message_size out for no limit: no call "
     "would ever use the plan"),
    ("MPP-4GIB", "offsets are 32-bit bytes on the device: larger buffers wrap round",
     "lower max_message_size to what is right"),
    ("MPP-RANKS", "gpus lists every rank, gpus[r].id = r", "list them in order"),
    ("MPP-NODES", "nodes hold equally many ranks, numbered node by node: MSCCL++ makes no Executor "
     "for others (bootstrap.cc:459-487)",
     "name as many ranks of every node, node by node (--ranks 'a/*,b/*'), or take another runtime: "
     "--target msccl or rccl, whose plans deploy --runtime torch runs too"),
    ("MPP-NICS", "only the first 8 ranks of a node have ports to other nodes: of others MSCCL++ "
     "reads a NIC from behind its table (executor.cc:102, 223, 292, 334)",
     "take 8 ranks a node (--ranks 'box*/gpu[0-7]'), or another runtime: --target msccl or rccl, "
     "whose plans deploy --runtime torch runs too"),
    ("MPP-CHUNKS-ZERO", "input_chunks and output_chunks are 1 to 2^31 - 1: the loader divides by "
     "them", "write the number of chunks"),
    ("MPP-CHUNKS", "the chunks of input and output fit the collective, alike at every rank",
     "correct them: a chunk has one size in all buffers"),
    ("MPP-TB-NONE", "every rank has a thread block: an empty launch fails",
     "give it one, if only with a nop"),
    ("MPP-TB-ID", "threadblocks[b].id = b: the loader writes beyond its lists otherwise",
     "number them by position"),
    ("MPP-TB-SMS", "all thread blocks of a rank run at once: no more than the GPU's SMs",
     "use fewer trees; or say how many SMs there are with --sms"),
)  # fmt: skip
_add(
    "warning",
    ("MPP-PROTOCOL", "protocol is Simple or LL: any other word means Simple", "write Simple or LL"),
    ("MPP-NO-MAX", "max_message_size says up to where 32-bit offsets are right",
     "set it: larger buffers wrap round"),
    ("MPP-REUSE", "reuse_resources gives scratch 64 MiB: larger chunks wrap round in it",
     "set it false, or bound max_message_size"),
    ("MPP-IDLE-CHANNEL", "channels pair: the n-th from i to j with the n-th from j to i",
     "list as many back; the runtime makes a dummy"),
)  # fmt: skip
_add(
    "note",
    ("MPP-SIZES", "a call of another size ends in an exception", "pad the call"),
    ("MPP-SUM", "the executor always sums, whatever operation the call asks for",
     "use the plan for sums only"),
    ("MPP-HCA", "a rank with ports to other nodes takes the NIC of its number in its node: it ends "
     "in an exception where there are fewer (executor.cc:292, ib.cc:640, 685)",
     "name one a rank in MSCCLPP_HCA_DEVICES, a shared one as often"),
    ("MPP-PACKET-COUNT", "packets carry how many plans their process has launched: ranks that have "
     "launched more or fewer wait for ever (executor.cc:516-537)",
     "launch the same plans at all ranks, of one group a process"),
    ("MPP-ROOT-IGNORED", "the runtime does not look at the root", "call it with this root only"),
    ("MPP-UNHOOKED", "the NCCL shim takes plans for allreduce, allgather, reducescatter and "
     "broadcast only", "run it with the Python Executor"),
)  # fmt: skip

# --- MSCCL++: channels and buffers ----------------------------------------------------------------

_add(
    "error",
    ("MPP-CHANNEL-TYPE", "channel types are memory, port and switch", "use one of them"),
    ("MPP-PEER", "a channel and a remote buffer lead to another rank of the plan",
     "name a rank from 0 on that is not the own one"),
    ("MPP-MEMORY-FAR", "memory and switch channels stay in a node: they open a peer's memory by "
     "CUDA IPC (executor.cc:296-303)", "use a port channel"),
    ("MPP-BUFFER-TYPE", "buffers are i, o and s", "use one of them"),
    ("MPP-TB-CHANNEL-ID", "channel_ids of a thread block count in the rank's flat list of that "
     "type", "correct the id; none is checked"),
    ("MPP-TB-CHANNELS", "a thread block holds 16 channels of a type", "use more thread blocks"),
    ("MPP-CHANNEL-TWICE", "a thread block lists a channel once", "delete one of the two"),
    ("MPP-CHANNEL-SHARED", "one thread block signals, and one waits, on a channel: its counter "
     "belongs to one", "give each thread block a channel of its own"),
    ("MPP-SIGNAL-THREADS", "a nop stands between signals on one channel that different threads "
     "give (the t-th of an operation is thread t's): up to v0.8.0 an older count may come last "
     "(semaphore_device.hpp:84-98 there; atomic since 4f3638b6)",
     "insert a nop, or name the channel at one place in both"),
    ("MPP-REMOTE-ID", "remote_buffer_ids count in the rank's remote_buffers", "correct the id"),
    ("MPP-REMOTE-EMPTY", "a remote buffer is scratch only of ranks that have some: they register "
     "it, used or not (executor.cc:344-348)", "delete it, and count the others anew"),
    ("MPP-REMOTE-ACCESS", "a remote buffer is reached by the types in access_channel_types: others "
     "silently give the first buffer", "add the type there"),
    ("MPP-TB-REMOTES", "a thread block reaches 16 remote buffers by a type",
     "use more thread blocks"),
    ("MPP-SWITCH-GROUP", "a switch channel's rank_groups name ranks of the plan, the own one and "
     "others", "correct ranks and size"),
    ("MPP-SWITCH-ORDER", "all ranks of a group list the same switch channels in one order: the "
     "n-th are set up together", "correct group, buffer_type or order; ranks wait for each other "
     "otherwise, or join different buffers"),
    ("MPP-SEMAPHORE-INIT", "a semaphore starts at 0 to 2^31 - 1", "correct init_value"),
)  # fmt: skip

# --- MSCCL++: operations --------------------------------------------------------------------------

_add(
    "error",
    ("MPP-OPS", "a thread block holds 64 operations, pipelines and those in them counted alike",
     "use more thread blocks, or fewer trees"),
    ("MPP-OP-NAME", "the executor knows the operation", "use one that it knows"),
    ("MPP-UNION", "an operation uses one group of fields: channels and buffers, iter_context, "
     "barrier, or semaphores; they share their bytes", "make it several operations"),
    ("MPP-OP-INCOMPLETE", "an operation has the fields that it needs: without, it does nothing",
     "add them"),
    ("MPP-OP-CHANNELS", "an operation names at most 8 channels", "make it several"),
    ("MPP-OP-CHANNEL-ID", "channel_ids of an operation count in the thread block's own list",
     "correct the id: it is not the rank's"),
    ("MPP-OP-CHANNEL-TYPE", "the operation works over that type of channel", ""),
    ("MPP-OP-OPERANDS", "an operation has the sources and destinations that it works on",
     ""),
    ("MPP-OP-REFS", "an operation has at most 10 sources and 10 destinations", "make it several"),
    ("MPP-BUFFER-ID", "buffer_id counts in the thread block's own refs of that channel type",
     "correct the id: it is not the rank's"),
    ("MPP-SWITCH-ID", "switch_channel_id counts in the thread block's own switch channels",
     "correct the id"),
    ("MPP-SIZE-ZERO", "a buffer range covers at least one chunk", "correct size"),
    ("MPP-BOUNDS", "index and size stay within the buffer", "correct them, or enlarge it"),
    ("MPP-OP-SIZES", "all operands of an operation cover equally many chunks: the kernel takes the "
     "size of one of them", "make them equal"),
    ("MPP-PUT-SOURCES", "the sources of a memory put lie in one buffer: the kernel takes the first "
     "one's for all", "make it a put a buffer"),
    ("MPP-PUT-CHANNEL", "the i-th destination of a put goes over the i-th channel, to its rank",
     "list the channels in the order of the destinations"),
    ("MPP-GET-SWAP", "get works between equal chunk numbers only: the kernel swaps the offsets",
     "let the peer put"),
    ("MPP-PIPE-NESTED", "a pipeline holds no pipeline", "unroll the inner one"),
    ("MPP-PIPE-EMPTY", "a pipeline has operations", "delete it"),
    ("MPP-PIPE-UNIT", "unit_size, by which the loader divides, is a multiple of 16 from 16 to "
     "below 2^32", "correct it"),
    ("MPP-PIPE-CHUNKS", "num_chunks is at least 1", "correct it"),
    ("MPP-PIPE-UNDERFLOW", "operations of a pipeline cover num_chunks: in less, size - offset "
     "underflows and copies beyond the buffer", "give them exactly num_chunks chunks"),
    ("MPP-PIPE-SHORT", "operations of a pipeline cover num_chunks: of more, the rest is left out",
     "give them exactly num_chunks chunks"),
    ("MPP-PIPE-TBG", "operations of a pipeline have no tbg_info: a slice underflows",
     "split by chunks instead"),
    ("MPP-PIPE-PACKETS", "packet operations stay out of pipelines: they do the whole each round",
     "take them out"),
    ("MPP-TBG", "tb_id is below tbg_size, which is at least 1", "correct them"),
    ("MPP-BARRIER-ID", "barrier ids are 0 to 15", "renumber"),
    ("MPP-BARRIER-UNMATCHED", "as many thread blocks come to a barrier as it is for",
     "set num_threadblocks to their number"),
    ("MPP-SEMAPHORE-ID", "semaphore_ids count in the rank's semaphores", "correct the id"),
    ("MPP-SEMAPHORES", "an operation names at most 16 semaphores, each once", "make it several"),
    ("MPP-SEMAPHORE-UNMATCHED", "a semaphore is acquired as often as it is released",
     "add what is missing: the rest breaks the next launch"),
    ("MPP-SEMAPHORE-SHARED", "one thread block releases a semaphore and one acquires it",
     "use one a pair of thread blocks"),
    ("MPP-SIGNAL-UNMATCHED", "every signal has its wait at the paired channel, and every wait its "
     "signal: counters live on", "add what is missing: the rest breaks the next launch"),
    ("MPP-PACKET-PROTOCOL", "packets need protocol LL: scratch is half as large otherwise",
     "set protocol to LL"),
    ("MPP-PACKET-PORT", "packets go over a port by rppkt: ppkt names memory of another plan",
     "use memory channels, or rppkt"),
    ("MPP-PACKET-SCRATCH", "packets lie in scratch only: offsets are doubled",
     "put them into scratch, and unpack there"),
    ("MPP-DOUBLE-SCRATCH", "with use_double_scratch_buffer only packets reach a peer's scratch: "
     "others take its first half always, though it is in use every other launch only",
     "set it false, or move packets"),
    ("MPP-SCRATCH-UNEQUAL", "with use_double_scratch_buffer all ranks that exchange packets have "
     "equal scratch: who writes them takes them half his own further every other launch",
     ""),
    ("MPP-PLACE", "in place, ports and peers find the shorter buffer of an allgather or "
     "reduce-scatter elsewhere: at allocations' begins, or as far from there as at the own rank",
     ""),
)  # fmt: skip
_add(
    "warning",
    ("MPP-FLUSH", "flush does nothing in the executor", "use pwsf, or wait for an answer"),
    ("MPP-FIELD-UNUSED", "an operation has no fields that it does not use", "delete them"),
)  # fmt: skip
_add(
    "note",
    ("MPP-SWITCH", "switch operations need sm_90 and an NVLS fabric",
     "keep a plan without them for other machines"),
)  # fmt: skip

# --- RCCL_TREES -----------------------------------------------------------------------------------

_add(
    "error",
    ("TREES-SYNTAX", "a tree is a rank in brackets, and in them what is below it; | parts trees",
     "write digits, brackets and | alone: the parser takes anything else for part of a number"),
    ("TREES-RANK", "ranks are those of the box: the library's start fails at another",
     "number the GPUs from 0 on"),
    ("TREES-MISSING", "every tree has every rank: one that is missing keeps the library's own tree",
     "put it below some rank"),
    ("TREES-TWICE", "a tree has each rank once", "leave it away in one of the places"),
    ("TREES-CHILDREN", "a rank has two children at most: kernels are built for two, and the parser "
     "loses its way in four", "put the third below one of the others"),
    ("TREES-COUNT", "there are 63 trees at most: the library writes beyond its table",
     "leave trees away"),
    ("TREES-LENGTH", "a tree has 255 characters at most: the library writes beyond its table",
     "take trees of fewer ranks"),
)  # fmt: skip

# --- NCCL_GRAPH_FILE ------------------------------------------------------------------------------

_add(
    "error",
    ("GRAPH-SYNTAX", "the file is well-formed XML", "write it anew; often it was cut off"),
    ("GRAPH-VERSION", "the outermost element is <graphs version=\"1\">: the library's start fails",
     "write version 1"),
    ("GRAPH-MISSING", "every attribute that the library asks for is there: its start fails",
     "add it"),
    ("GRAPH-NUMBER", "numbers are numbers: of a dev hexadecimal; anything else is read as 0",
     "write a number"),
    ("GRAPH-CHANNELS", "nchannels is how many channels are listed, 64 at most: those that lack are "
     "rank 0 throughout, those beyond overwrite memory", "count them"),
    ("GRAPH-TWICE", "a channel has each GPU once: of rings the library's start fails, trees are "
     "never looked at", "name the GPU that lacks"),
    ("GRAPH-GPUS", "every channel has all GPUs of the box, and no other: the library crashes at "
     "ranks that are not there, and takes the channel before for those that lack",
     "name all of them"),
    ("GRAPH-NET", "a channel begins and ends with its <net>, or has none: the library fills two",
     "name the adapter first and last"),
)  # fmt: skip
_add(
    "warning",
    ("GRAPH-ID", "graphs are 0 to 4, each once: the library passes over others", "delete it"),
    ("GRAPH-TYPE", "typeintra and typeinter are words of the library: else it falls back",
     "write LOC, NVL, NVB, PIX, PXB, P2C, PXN, PHB or SYS"),
    ("GRAPH-ELEMENT", "a channel holds <gpu> and <net>: others are passed over", "delete it"),
)  # fmt: skip
_add(
    "note",
    ("GRAPH-RINGS", "the file has rings: the library looks for its own where it has none", ""),
)  # fmt: skip

# --- the symbolic run -----------------------------------------------------------------------------

_add(
    "error",
    ("RUN-REFUSED", "the plan can be read as a program", ""),
    ("RUN-DEADLOCK", "no thread blocks wait for each other in a circle, with the runtime's queues",
     "let one of them receive first"),
    ("RUN-RACE", "any two accesses to a chunk, one of them writing, are ordered",
     "order them: a dependency (XML), or signal, wait and nop (MSCCL++)"),
    ("RUN-RACE-NOP", "a nop stands between a wait and the data, between the data and its signal, "
     "and between data operations that meet", "insert a nop"),
    ("RUN-RACE-LAUNCHES", "nothing of a launch meets the next one in a buffer",
     "begin with a handshake (rlxsignal, rlxwait, nop) with whoever still reads or writes it"),
    ("RUN-RACE-CALLER", "a rank's buffers are touched while its launch lasts only",
     "let the rank say that it has begun, and wait for its peers before it ends"),
    ("RUN-PACKETS-TWICE", "a packet slot is written once a launch: whoever reads the first would "
     "take it for the second", "give the second one a slot of its own"),
    ("RUN-OVERLAP", "operands of one operation are the same chunks or apart", "split it"),
    ("RUN-WRONG-SUM", "every contribution is added once, to its own chunk",
     "correct offsets or the order"),
    ("RUN-WRONG-RESULT", "every output chunk ends as the collective defines it",
     "correct offsets, or add what is missing"),
    ("RUN-UNFOLLOWED", "the plan can be followed symbolically", ""),
)  # fmt: skip
_add(
    "warning",
    ("RUN-DATA-UNFOLLOWED", "the result is compared with the collective's",
     "say with --collective what it is meant to be"),
    ("RUN-PARTLY-FOLLOWED", "all that the plan does was followed", "look at the rest by hand"),
)  # fmt: skip
_add(
    "note",
    ("RUN-SKIPPED", "the plan was run symbolically", "cure the errors, then lint again"),
    ("RUN-ROOT", "the file says its root", "none: the root was found from the data"),
)  # fmt: skip
