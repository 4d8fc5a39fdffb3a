#!/usr/bin/env bash
# FLAIR's table 3: is there a structure in the image? Has the same arguments as scripts/flair_table1.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/flair/table3 "$@"
