"""The subcommands of ``pfl-bench``, one module each, imported when one is called."""
