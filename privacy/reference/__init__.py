"""What a run did, computed again from definitions: plain and slow, for people to read.

Guarantee: none of its own. It imports none of the code that it is held against.
"""
