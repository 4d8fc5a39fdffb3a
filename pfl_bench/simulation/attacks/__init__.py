"""Attacks, one file each: what corrupted clients train on and send."""
