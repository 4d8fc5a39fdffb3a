#!/usr/bin/env bash
# FLAIR without a download: generates images in FLAIR's published form, prepares them, and runs three
# rows on them: central, federated, private federated. Minutes on two CPU cores, after the install.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
[ -d data/flair-mini ] || .venv/bin/pfl-bench data generate flair --out data/flair-mini
[ -e flair-mini.h5 ] || .venv/bin/pfl-bench data prepare flair --source data/flair-mini --out flair-mini.h5
exec .venv/bin/pfl-bench table configs/flair/mini "$@"
