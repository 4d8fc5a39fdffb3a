"""Several processes on one run: one leads, the others train and evaluate what they are assigned."""
