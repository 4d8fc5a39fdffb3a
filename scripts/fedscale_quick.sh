#!/usr/bin/env bash
# FedScale's kinds of figures without a download: scikit-learn's digits and generated devices, in the report that is named
# at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
exec .venv/bin/pfl-bench table configs/fedscale/quick-figures "$@"
