"""Routes: which physical path every edge of a schedule takes through a fabric of switches.

fabric   planes, spines and cores one by one, where a topology has them merged; their numbers
edges    what a forest, routes of an all-to-all or pairs of ranks send through the fabric
spread   planes evenly, spines by edge colouring, or shares of all; loads; ECMP beside it
repair   what a failure takes away of routes, and the paths that replace it
"""
