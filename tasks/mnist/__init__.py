"""MNIST: written digits, by artificial clients or by their real writers."""
