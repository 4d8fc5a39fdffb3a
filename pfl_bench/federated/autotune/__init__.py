"""What "auto" comes to for engine, slots and workers: measured once, kept, then picked again."""
