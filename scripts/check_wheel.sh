#!/usr/bin/env bash
# Builds the wheel, installs it into an empty environment, and runs the demo's private row from
# there, in a folder that is not the checkout. Expects `python` with the package `build`.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python -m build --wheel --outdir "$folder/dist" . >"$folder/build.log" 2>&1 || { cat "$folder/build.log"; exit 1; }
rm -rf build
python -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$folder"/dist/*.whl
cd "$folder"
"$folder/venv/bin/pfl-bench" run demo/private_federated.yaml --out "$folder/run" >"$folder/run.log" 2>&1 ||
    { cat "$folder/run.log"; exit 1; }
for name in summary.json privacy.json ledger.jsonl metrics.jsonl report.html; do
    [ -s "$folder/run/$name" ] || { echo "the wheel's run wrote no $name"; exit 1; }
done
# Its templates are package data.
"$folder/venv/bin/pfl-bench" new algorithm my_method >"$folder/new.log" 2>&1 &&
    "$folder/venv/bin/pfl-bench" check-plugin my_method >"$folder/check.log" 2>&1 ||
    { cat "$folder/new.log" "$folder/check.log"; exit 1; }
origin=$("$folder/venv/bin/python" -c 'import pfl_bench; print(pfl_bench.__file__)')
case "$origin" in
"$checkout"/*) echo "the wheel check ran the checkout's code: $origin" && exit 1 ;;
esac
echo "the wheel runs the demo's private row, and a plug-in of one's own"
