#!/usr/bin/env bash
# The rows of LEAF's table 2. One row: --only ROW; the paper's means are over --seeds 5. Finished runs are not run again,
# interrupted ones resume. The synthetic rows need no data. The header of each other row says how its store is prepared.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/leaf/table2 "$@"
