#!/usr/bin/env bash
# Everything that CI runs: lint, format, types, the documentation, (with CI=true or --wheel) the wheel, tests.
# --fast [PATH ...]: lint, format, types, and the tests of these paths (default: what differs from the last commit)
# but the slow ones; it says what it leaves out.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
wheel=${CI:-false}
fast=false
case "${1:-}" in
    --wheel) wheel=true; shift ;;
    --fast) fast=true; shift ;;
esac
ensure_environment ".[dev]"
export PATH="$PWD/.venv/bin:$PATH"
# Hundreds of processes of tests import the packages: without bytecode each would compile them anew.
unset PYTHONDONTWRITEBYTECODE
if [ "$fast" = true ]; then
    chosen=$(python -m scripts.fast_tests "$@")
fi
echo "== ruff"
ruff check .
ruff format --check .

# Types and the documentation use what the tests leave of the processors: a tenth of the time of two.
logs=$(mktemp -d)
pid=
trap 'kill $pid 2>/dev/null || true; rm -rf "$logs"' EXIT
checks='echo "== mypy"; mypy'
if [ "$fast" = true ]; then
    mapfile -t chosen <<<"$chosen"
    set -- --fast "${chosen[@]}"
else
    checks+='; echo "== docs"; python scripts/docs.py'
fi
nice -n 5 bash -euc "$checks" >"$logs/checks" 2>&1 &
pid=$!
if [ "$wheel" = true ] && [ "$fast" = false ]; then
    echo "== wheel"
    bash scripts/check_wheel.sh
fi
echo "== pytest"
failed=0
pytest -n 2 --dist worksteal "$@" | tee "$logs/pytest" || failed=$?
wait "$pid" || failed=$?
pid=
cat "$logs/checks"
# Last, where whoever reads the end of the output looks for it.
tail -n 1 "$logs/pytest"
exit "$failed"
