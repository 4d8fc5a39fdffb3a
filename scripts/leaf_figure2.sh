#!/usr/bin/env bash
# LEAF's figure 2: does FedAvg diverge on Shakespeare with many local epochs? The figure is in the report that is named at
# the end. Makes shakespeare-118.h5 when it is missing, from the text in SHAKESPEARE (a folder; default data/shakespeare).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
[ -e shakespeare-118.h5 ] || .venv/bin/pfl-bench data prepare shakespeare num_users=118 min_examples=64 \
    train_fraction=0.9 val_fraction=0 --source "${SHAKESPEARE:-data/shakespeare}" --out shakespeare-118.h5
exec .venv/bin/pfl-bench table configs/leaf/figure2 "$@"
