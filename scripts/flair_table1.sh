#!/usr/bin/env bash
# The rows of FLAIR table 1: 12 in the paper, the private ones twice (as published, corrected). One row: --only ROW. What is
# done is not run again, what was cut goes on. Expects flair.h5 in the checkout (pfl-bench data prepare flair), or task.data=PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/flair/table1 "$@"
