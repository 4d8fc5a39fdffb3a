#!/usr/bin/env bash
# The rows of LEAF's table 2. One row: --only ROW; the paper's means are over --seeds 5. What is done is not run again, what
# was cut goes on. The synthetic rows need no data; each of the others says in its header how its store is prepared.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/leaf/table2 "$@"
