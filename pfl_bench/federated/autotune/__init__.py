"""Settling of "auto" for engine, slots and workers: measured once, kept, then picked again."""
