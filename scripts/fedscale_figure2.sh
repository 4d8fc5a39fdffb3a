#!/usr/bin/env bash
# FedScale's figure 2: the results of evaluations without devices, and with few participants.
# Makes openimage-fedscale.h5 when it is missing, from the files in OPENIMAGE (a folder; default data/openimage).
# The traced devices are read from the checkout, beside the store: client_device_capacity and client_behave_trace.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
ensure_openimage openimage-fedscale.h5 21
exec .venv/bin/pfl-bench table configs/fedscale/figure2 "$@"
