#!/usr/bin/env bash
# The rows of FedScale's table 4. One row: --only ROW; the paper's means are over --seeds 5. What is done is not run again,
# what was cut goes on. Each row says in its header how its store is prepared.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/fedscale/table4 "$@"
