#!/usr/bin/env bash
# The rows of FLAIR table 1: 12 in the paper, the private ones twice (as published, corrected). One row: --only ROW. Finished
# runs are not run again, interrupted ones resume. Expects flair.h5 in the checkout (pfl-bench data prepare flair), or task.data=PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/flair/table1 "$@"
