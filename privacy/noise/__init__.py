"""Shared by mechanisms: clipped sums, strategies of correlated noise, reports of clients."""
