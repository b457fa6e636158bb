"""What runs today beside what could: our plans, baselines and anybody's files, timed by size.

competitors  whose plans take part: ours, those of `baselines`, files; and what plays them
play         the time of each at each size, under each rule of links
outcome      what comes out: times, rates, who is fastest where
"""
