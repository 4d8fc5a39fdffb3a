#!/usr/bin/env bash
# LEAF's Reddit at full scale, without and with privacy. One row: --only nonprivate or --only private. Expects reddit.h5 in the
# checkout (pfl-bench data prepare reddit), or task.data=PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/reddit "$@"
