"""What a run did, computed again from definitions: plain and slow, for people to read.

Guarantee: none of its own. It imports none of the code that it is held against. It shares with a
run the task, the model and the algorithm's own hooks, which it is given, and the definition of the
random streams, which ``streams`` writes down. Vectors that are clipped or summed are float64.

Of a federated round read in this order: ``streams``, ``cohort``, ``client``, ``noise``,
``central``, ``round``. ``dp_sgd`` has the steps of DP-SGD.
"""
