#!/usr/bin/env bash
# Builds the wheel (from an sdist), installs it, and uses it from an empty folder, as someone without a checkout does: the demo, list,
# copy, show, what docs/beside_fedavg.md says, and folders whose names the package has too. Expects `python` with the package `build`.
#
# WHEEL_ENVIRONMENT=DIR installs into that environment, which has the dependencies, in place of a new one (some GB, minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
    echo "wheel check: $1" >&2
    exit 1
}

# quietly COMMAND...: shows what a command said only if it fails.
quietly() {
    "$@" >"$folder/said.log" 2>&1 || { cat "$folder/said.log" >&2; fail "failed: $*"; }
}

# shadowed COMMAND...: the command ends in the message on a foreign package, with exit code 2 and without a traceback.
shadowed() {
    local code=0
    "$@" >"$folder/said.log" 2>&1 || code=$?
    [ "$code" = 2 ] && grep -q "own package 'tasks' is shadowed by" "$folder/said.log" &&
        ! grep -q Traceback "$folder/said.log" || { cat "$folder/said.log" >&2; fail "no message on a foreign tasks/: $*"; }
}

quietly python -m build --outdir "$folder/dist" . # the wheel from the sdist, which has to be whole
! tar -tzf "$folder"/dist/*.tar.gz | grep /tests/ >"$folder/said.log" || fail "the sdist has a part of the tests, which cannot run there"
rm -rf build/lib build/bdist.*
environment=${WHEEL_ENVIRONMENT:-$folder/venv}
if [ -n "${WHEEL_ENVIRONMENT:-}" ]; then
    quietly "$environment/bin/python" -m pip install --disable-pip-version-check --no-deps --force-reinstall "$folder"/dist/*.whl
else
    python -m venv "$environment"
    quietly "$environment/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$folder"/dist/*.whl
fi
unset PYTHONPATH
mkdir "$folder/empty"
cd "$folder/empty"
bench=$environment/bin/pfl-bench

origin=$("$environment/bin/python" -c 'import pfl_bench; print(pfl_bench.__file__)')
case "$origin" in
"$checkout"/pfl_bench/*) fail "the checkout's code was imported: $origin" ;;
esac

echo "wheel check: the demo's table"
quietly "$bench" table demo --out runs/demo
for name in summary.json privacy.json ledger.jsonl metrics.jsonl; do
    [ -s "runs/demo/private_federated/seed-0/$name" ] || fail "the demo's private row wrote no $name"
done
quietly "$bench" audit runs/demo/private_federated/seed-0

echo "wheel check: list and copy"
"$bench" list rows | grep -q demo/private_federated.yaml || fail "list does not show the bundled rows"
quietly "$bench" copy demo/federated.yaml mine.yaml
[ -s mine.yaml ] || fail "copy wrote no file"

quietly "$bench" show demo/private_federated --no-estimate

echo "wheel check: a plug-in from the templates, which are package data"
quietly "$bench" new algorithm my_method
quietly "$bench" check-plugin my_method

echo "wheel check: an algorithm of one's own, as docs/beside_fedavg.md says"
python - "$checkout" >"$folder/page.sh" <<'END'
import sys
from pathlib import Path

checkout = Path(sys.argv[1])
sys.path.insert(0, str(checkout / "scripts"))
from documentation.tutorials import as_script

print(as_script((checkout / "docs/beside_fedavg.md").read_text(encoding="utf-8")))
END
mkdir "$folder/page" && cd "$folder/page"
PATH="$environment/bin:$PATH" bash "$folder/page.sh" >"$folder/page.log" 2>&1 || { cat "$folder/page.log"; fail "the page's commands failed"; }
grep -q "^PASSED" "$folder/page.log" || { cat "$folder/page.log"; fail "the page's run passed no audit"; }
cd "$folder/empty"

echo "wheel check: a folder tasks/ beside the user"
mkdir tasks
touch tasks/__init__.py
quietly "$bench" list tasks
shadowed env PYTHONPATH=. "$bench" list tasks
shadowed "$environment/bin/python" -m pfl_bench list tasks
echo "the wheel works from an empty folder: demo, list, copy, show, an algorithm of one's own, messages"
