#!/usr/bin/env bash
# LEAF's figure 3: accuracy over Sent140's users, and the cost of an accuracy of 0.75 on FEMNIST. The figures are in the report
# that is named at the end. Makes the stores that are missing, from the files in SENT140 and FEMNIST (folders; default
# data/sent140 and data/femnist); a figure whose files are missing is left out, and the script says so.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
sent140=${SENT140:-data/sent140} femnist=${FEMNIST:-data/femnist}
if [ -d "$sent140" ]; then
    for k in 3 10 30 100; do
        [ -e "sent140-k$k.h5" ] || .venv/bin/pfl-bench data prepare sent140 user_fraction=0.5 min_examples="$k" \
            train_fraction=0.8 val_fraction=0 --source "$sent140" --out "sent140-k$k.h5"
    done
fi
if [ -d "$femnist" ] && [ ! -e femnist-5-percent.h5 ]; then
    .venv/bin/pfl-bench data prepare femnist user_fraction=0.05 min_examples=100 train_fraction=0.8 val_fraction=0 \
        --source "$femnist" --out femnist-5-percent.h5
fi
exec .venv/bin/pfl-bench table configs/leaf/figure3 "$@"
