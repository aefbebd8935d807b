"""Seeded workloads of the papers: problems to plan, and their loads.

Each module has one setting. Where a paper leaves a value open it is a parameter, whose default is documented.

Notes
-----
ALBIC, sections 5.1 and 5.3 (fifth erratum: the mean load is 50); Elasticutor, sections 5.1 and 5.4 (fifth and sixth
erratum: data intensity, cost of a tuple); ELB/CLB, section 5, which no erratum concerns.
"""
