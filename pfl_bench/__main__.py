"""``python -m pfl_bench``: the command line."""

import sys
from pathlib import Path

if __name__ == "__main__":
    home = Path(__file__).resolve().parent.parent
    if not sys.flags.safe_path and Path(sys.path[0]).resolve() == Path.cwd() != home:
        # Python puts the current folder first: what lies there would be imported, and a
        # *.dist-info there would name plug-ins.
        del sys.path[0]
    from pfl_bench.cli.main import main

    sys.exit(main())
