"""A run's rounds, computed again from definitions: plain and slow, for people to read.

Guarantee: none of its own. It imports none of the code that it is held against. It shares with a
run the task, the model and the algorithm's own hooks, which it is given, and the definition of the
random streams. Vectors that are clipped or summed are float64. ``round`` is the place to begin.
"""
