"""Auditing a run's folder: what it has, opened, drawn and computed again."""
