#!/usr/bin/env bash
# FedScale's figure 11: four methods over rounds on OpenImage and Google Speech, and 30 participants against 100.
# Makes openimage-fedscale.h5 when it is missing, from the files in OPENIMAGE (a folder; default data/openimage).
# The headers of Google Speech's rows say how their store is prepared.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
ensure_openimage openimage-fedscale.h5 21
exec .venv/bin/pfl-bench table configs/fedscale/figure11 "$@"
