"""Single failures: what each costs, and the plans for all of them made ahead.

failures   every cable, adapter, GPU and switch that can fail, and which of them are alike
losses     algbw with the forest in use and with the best new one; the worst in simulated time
bundle     forests and plans for every failure, in a folder each
"""
