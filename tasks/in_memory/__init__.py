"""Tasks that were made of objects in this process, by ``pfl_bench.in_memory_task``."""
