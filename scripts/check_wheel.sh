#!/usr/bin/env bash
# Builds the wheel, installs it into an empty environment, and runs the demo's private row from
# there, in a folder that is not the checkout; then does what docs/beside_fedavg.md says, in an empty
# folder. Expects `python` with the package `build`.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python -m build --wheel --outdir "$folder/dist" . >"$folder/build.log" 2>&1 || { cat "$folder/build.log"; exit 1; }
rm -rf build/lib build/bdist.*
python -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$folder"/dist/*.whl
cd "$folder"
"$folder/venv/bin/pfl-bench" run demo/private_federated.yaml --out "$folder/run" >"$folder/run.log" 2>&1 ||
    { cat "$folder/run.log"; exit 1; }
for name in summary.json privacy.json ledger.jsonl metrics.jsonl report.html; do
    [ -s "$folder/run/$name" ] || { echo "the wheel's run wrote no $name"; exit 1; }
done
origin=$("$folder/venv/bin/python" -c 'import pfl_bench; print(pfl_bench.__file__)')
case "$origin" in
"$checkout"/*) echo "the wheel check ran the checkout's code: $origin" && exit 1 ;;
esac
python - "$checkout" >"$folder/page.sh" <<'END'
import sys
from pathlib import Path

checkout = Path(sys.argv[1])
sys.path.insert(0, str(checkout / "scripts"))
from documentation.tutorials import as_script

print(as_script((checkout / "docs/beside_fedavg.md").read_text(encoding="utf-8")))
END
mkdir "$folder/empty" && cd "$folder/empty"
PATH="$folder/venv/bin:$PATH" bash "$folder/page.sh" >"$folder/page.log" 2>&1 || { cat "$folder/page.log"; exit 1; }
grep -q "^PASSED" "$folder/page.log" || { cat "$folder/page.log"; exit 1; }
echo "the wheel runs the demo's private row, and what docs/beside_fedavg.md says"
