#!/usr/bin/env bash
# Two calls, under ten minutes each on one GPU: what of pfl-bench works there, and how fast it is. Without a GPU the steps that
# need one say "skipped". PYTHON=/path/to/python3 takes an environment that already has what pyproject.toml names.
#
#     bash scripts/gpu_check.sh correctness --out correctness.json
#     bash scripts/gpu_check.sh speed --out speed.json
#     bash scripts/gpu_check.sh --list
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
    source scripts/environment.sh
    ensure_environment ".[dev]"
    PYTHON=.venv/bin/python
fi
# An environment that is given need not have the checkout installed.
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
exec "$PYTHON" scripts/gpu_check.py "$@"
