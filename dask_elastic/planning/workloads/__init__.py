"""Workloads of the papers, made from a seed: problems to plan, and the loads behind them.

Each module has one setting. What a paper does not say is a parameter, and its default is told.
"""
