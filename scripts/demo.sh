#!/usr/bin/env bash
# Four rows on real handwriting in under a minute after the install: central, central with
# example-level DP, federated, private federated. Prints the table and the path of the report.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/demo \
  --columns "row,measured,reference,epsilon (simulated),epsilon (actual)" "$@"
