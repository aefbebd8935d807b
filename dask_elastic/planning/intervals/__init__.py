"""Task intervals to nodes: state migration where each node has consecutive tasks, one step or many steps ahead.

Notes
-----
State migration (Ding et al.), sections 4 to 6.
"""
