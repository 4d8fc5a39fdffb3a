#!/usr/bin/env bash
# FLAIR's table 2, a view: average precisions by class of the coarse runs of table 1, which are run, resumed or found in
# table 1's own folders. Has the same arguments as scripts/flair_table1.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/flair/table2 "$@"
