"""Windows over event time: their definition, the plan that merges partials into complete windows, and what both cost.

Notes
-----
Enorm, sections 4.2, 5.1.1 and 6.1; ERRATA, Enorm 1, on how many results the paper's example merges.
"""
