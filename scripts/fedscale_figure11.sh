#!/usr/bin/env bash
# FedScale's figure 11: four methods over rounds on OpenImage and Google Speech, and 30 participants against 100.
# Makes openimage-fedscale.h5 when it is missing, from the files in OPENIMAGE (a folder; default data/openimage).
# The headers of Google Speech's rows say how their store is prepared.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
[ -e openimage-fedscale.h5 ] || .venv/bin/pfl-bench data prepare openimage min_examples=21 \
    --source "${OPENIMAGE:-data/openimage}" --out openimage-fedscale.h5
exec .venv/bin/pfl-bench table configs/fedscale/figure11 "$@"
