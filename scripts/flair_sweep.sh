#!/usr/bin/env bash
# A grid of FLAIR's appendix B.2: scripts/flair_sweep.sh ROW [key=value ...] [--only N], ROW being the name of a file under
# configs/flair/sweeps/. Without a ROW it lists them. Finished runs are not run again, interrupted ones resume.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
if [ $# -eq 0 ]; then
    echo "name a sweep: $(basename -a -s .yaml configs/flair/sweeps/*.yaml | tr '\n' ' ')" >&2
    exit 2
fi
row=$1
shift
ensure_environment "."
exec .venv/bin/pfl-bench sweep "configs/flair/sweeps/$row.yaml" "$@"
