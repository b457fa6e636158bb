"""Why an optimum is what it is: what limits it, what is nearly as tight, what more links give.

trees      links made wider until something else limits, the parts that machines have, and
           collectives over trees: cuts and linear programs
exchange   all-to-all and all-to-all-v: whose blocks load what limits
"""
