#!/usr/bin/env bash
# LEAF's methods and kinds of figures without a download: six rows on generated synthetic data, in the report that is named at
# the end.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/leaf/quick "$@"
