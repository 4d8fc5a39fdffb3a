#!/usr/bin/env bash
# FedScale's figure 16: the distribution of accuracy over clients, for table 4's rows of OpenImage with ShuffleNet-V2.
# Makes openimage-fedscale.h5 when it is missing, from the files in OPENIMAGE (a folder; default data/openimage).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
ensure_openimage openimage-fedscale.h5 21
exec .venv/bin/pfl-bench table configs/fedscale/figure16 "$@"
