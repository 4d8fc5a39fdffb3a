#!/usr/bin/env bash
# FedScale's table 6: seconds of a round of 10 to 10,000 clients.
# Makes openimage-all.h5 when it is missing, from the files in OPENIMAGE (a folder; default data/openimage).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
ensure_openimage openimage-all.h5 1
exec .venv/bin/pfl-bench table configs/fedscale/table6 "$@"
