"""FEMNIST: handwritten characters by writer (LEAF), and the same task on QMNIST's digits."""
