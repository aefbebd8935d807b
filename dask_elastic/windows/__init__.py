"""Windows: what they are, how complete ones are formed from partials, and when it pays.

Notes
-----
Enorm, sections 4.2, 5.1.1 and 6.1; ERRATA, Enorm 1, on how many results the paper's example merges.
"""
