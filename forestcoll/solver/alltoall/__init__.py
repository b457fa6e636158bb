"""All-to-all and all-to-all-v on any topology: the optimum, proven, and what reaches it.

demand    what every rank sends to every other, and over which nodes it may go
          (an all-to-all-v's from a file)
fold      quotient by symmetry: one source of each orbit of ranks; the proof: lengths of links bound
          the rate from above
columns   cheapest trees under prices: sparse cuts that bound the rate before any program is solved,
          flows and lengths near each other where none is in reach
flows     the optimum: a flow from each source, exact, with its lengths
routes    whole units on paths, what every link carries of them, the order of a path's links
rounding  routes near the optimum, over groups of symmetries
spread    static plans for blocks of any size
file      optimum files: flows or routes with the proof, JSON (`model`: its format)
"""
