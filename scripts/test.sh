#!/usr/bin/env bash
# Everything that CI runs: lint, format, types, the documentation, (with CI=true or --wheel) the wheel, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
wheel=${CI:-false}
if [ "${1:-}" = "--wheel" ]; then
    wheel=true
    shift
fi
ensure_environment ".[dev]"
export PATH="$PWD/.venv/bin:$PATH"
echo "== ruff" && ruff check . && ruff format --check .
echo "== mypy" && mypy
echo "== docs" && python scripts/docs.py
if [ "$wheel" = true ]; then
    echo "== wheel" && bash scripts/check_wheel.sh
fi
echo "== pytest"
exec pytest -n 2 --dist worksteal "$@"
