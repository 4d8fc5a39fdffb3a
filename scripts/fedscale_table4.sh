#!/usr/bin/env bash
# The rows of FedScale's table 4. One row: --only ROW; the paper's means are over --seeds 5. Finished
# runs are not run again, interrupted ones resume. The header of each row says how its store is prepared.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/fedscale/table4 "$@"
