"""What "auto" comes to for engine, lanes and workers: measured once, kept, then picked again."""
