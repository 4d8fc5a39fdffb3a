"""Demonstration task: scikit-learn's handwritten digits, assigned to artificial users."""
