"""What mechanisms share: clipped sums, strategies of correlated noise, reports of clients."""
