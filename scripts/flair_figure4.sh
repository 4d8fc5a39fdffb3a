#!/usr/bin/env bash
# FLAIR's figure 4: learning curves of private runs by cohort size, in the report that is named at the end. Has the same
# arguments as scripts/flair_table1.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/flair/figure4 "$@"
