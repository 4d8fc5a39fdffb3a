"""Clients that attack: corrupted data, and updates that are made to win."""
