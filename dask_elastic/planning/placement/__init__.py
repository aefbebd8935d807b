"""Groups to bins: planners that place groups of load on bins under budgets and capacities, and what they share.

Notes
-----
ALBIC, sections 2 to 4; ELB/CLB, sections 3 to 5; State migration, section 6 (baselines).
"""
