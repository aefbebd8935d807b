"""Workloads of the papers, made from a seed: problems to plan, and the loads behind them.

Each module has one setting. What a paper does not say is a parameter, and its default is told.

Notes
-----
ALBIC, sections 5.1 and 5.3 (fifth erratum: the mean load is 50); Elasticutor, sections 5.1 and 5.4 (fifth and sixth
erratum: data intensity, cost of a tuple); ELB/CLB, section 5, which no erratum concerns.
"""
