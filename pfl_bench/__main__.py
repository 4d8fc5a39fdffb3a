"""``python -m pfl_bench``: the command line."""

import sys

from pfl_bench.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
