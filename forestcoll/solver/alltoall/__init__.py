"""All-to-all and all-to-all-v on any topology: the optimum, proven, and what reaches it.

demand    what every rank sends to every other, and over which nodes it may go
fold      quotient by symmetry: one source of each orbit of ranks
lengths   the proof: lengths of links bound the rate from above
cuts      sparse cuts that bound the rate before any program is solved
flows     the optimum: a flow from each source, exact, with its lengths
matrix    the sizes of an all-to-all-v, from a file
partial   groups for routes of fabrics that are regular but for a few boxes
twice     two uniform all-to-alls as a static plan for any sizes
link_loads  what every link carries
file      optimum files: flows or routes with the proof, JSON (`model`: its format)
"""
