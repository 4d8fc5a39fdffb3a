"""Builds the documentation site, without a network: python scripts/docs.py [--out FOLDER].

Warnings, such as a link that leads nowhere, end the build, and so does a page of results that its
records do not give. The site can be opened from the disk.

``--release`` commits the site of the installed version to the branch ``gh-pages``, by mike, beside
those of earlier ones. A menu leads from one to the other; ``latest`` is the newest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from documentation.results import check_page
from documentation.staging import stage

from pfl_bench.types import UserInputError

CHECKOUT = Path(__file__).resolve().parent.parent
# As docs_dir of mkdocs.yml.
PAGES = CHECKOUT / "build" / "pages"


def build(config: Path, out: Path) -> int:
    """Build a site; a warning makes the exit code 1.

    Args:
        config: The mkdocs.yml.
        out: Folder of the site.
    """
    # Not --quiet: with it --strict counts no warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", out]
    # Not an announcement at each build.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, env=environment, check=False).returncode


def release(config: Path, number: str) -> int:
    """Commit the site of a version, as ``latest``, to ``gh-pages``; pushing it is the caller's."""
    mike = str(Path(sys.executable).with_name("mike"))
    deploy = ["deploy", "--update-aliases", "--alias-type", "redirect", number, "latest"]
    for command in (deploy, ["set-default", "latest"]):
        done = subprocess.run([mike, *command, "-F", config], cwd=config.parent, check=False)
        if done.returncode:
            return done.returncode
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Stage the pages and build the site; the exit code is that of MkDocs."""
    parser = argparse.ArgumentParser(description="Builds the documentation site.")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "site")
    parser.add_argument("--release", action="store_true", help="commit the site to gh-pages, too")
    given = parser.parse_args(arguments)
    out = given.out.resolve()
    try:
        check_page(CHECKOUT)
    except UserInputError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 2
    stage(CHECKOUT, PAGES)
    code = build(CHECKOUT / "mkdocs.yml", out)
    if code == 0:
        print(f"site: {out / 'index.html'}")
        if given.release:
            code = release(CHECKOUT / "mkdocs.yml", version("pfl-bench"))
    return code


if __name__ == "__main__":
    sys.exit(main())
