#!/usr/bin/env bash
# FedScale's figure 13: noise of sigma with N participants, each row with its true epsilon.
# Makes openimage-fedscale.h5 when it is missing, from the files in OPENIMAGE (a folder; default data/openimage).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
ensure_openimage openimage-fedscale.h5 21
exec .venv/bin/pfl-bench table configs/fedscale/figure13 "$@"
