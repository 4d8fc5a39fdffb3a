"""Demonstration task: scikit-learn's handwritten digits, dealt to artificial users."""
