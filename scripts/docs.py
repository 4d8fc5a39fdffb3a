"""Builds the documentation site, without a network: python scripts/docs.py [--out FOLDER].

Warnings, such as a link that leads nowhere, end the build. The site can be opened from the disk.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from documentation.staging import stage

CHECKOUT = Path(__file__).resolve().parent.parent
# As docs_dir of mkdocs.yml.
PAGES = CHECKOUT / "build" / "pages"


def main(arguments: list[str] | None = None) -> int:
    """Stage the pages and build the site; the exit code is that of MkDocs."""
    parser = argparse.ArgumentParser(description="Builds the documentation site.")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "site")
    out = parser.parse_args(arguments).out.resolve()
    stage(CHECKOUT, PAGES)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", out]
    # Not an announcement at each build.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    code = subprocess.run(command, cwd=CHECKOUT, env=environment, check=False).returncode
    if code == 0:
        print(f"site: {out / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
