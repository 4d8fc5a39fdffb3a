"""Differential privacy for federated and central training: clip, noise, account, state, audit.

This package imports nothing of ``pfl_bench`` or ``tasks`` and works on flat tensors, so that it
can be read, tested and trusted alone. Import the module that you need; nothing heavy is imported
here.

Guarantee: what a private run releases (the sequence of noised sums) is (epsilon, delta)
differentially private for the unit, the adjacency and the sampling that its statement names
(``privacy.statement.statement``); ``privacy.plan.plan`` refuses the combinations for which that
would be untrue.
"""
