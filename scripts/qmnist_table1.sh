#!/usr/bin/env bash
# QMNIST-836: user-level privacy on real writers. From the public mirrors, or MNIST's and QMNIST's files in DIR (--source DIR, first),
# to both tables, their report and the leaderboard with an audit of each private run. Makes mnist.h5 and mnist-deskewed-scattering.h5 in the
# checkout when they are missing. All other arguments are those of `pfl-bench table`, such as --seeds 5. Finished runs are
# not run again, interrupted ones resume.
set -euo pipefail
source=
if [ "${1:-}" = --source ]; then
    [ -d "${2:-}" ] || { echo "qmnist_table1.sh: --source: '${2:-}' is no folder; name the one with MNIST's and QMNIST's files" >&2; exit 2; }
    source=$(realpath "$2")
    shift 2
fi
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
if [ ! -e mnist.h5 ] || [ ! -e mnist-deskewed-scattering.h5 ]; then
    [ -n "$source" ] || { source=data/mnist && .venv/bin/pfl-bench data download mnist --out "$source"; }
fi
[ -e mnist.h5 ] || .venv/bin/pfl-bench data prepare mnist --source "$source" --out mnist.h5
[ -e mnist-deskewed-scattering.h5 ] || .venv/bin/pfl-bench data prepare mnist deskew=true features=scattering --source "$source" --out mnist-deskewed-scattering.h5
for table in table1 mechanisms; do
    .venv/bin/pfl-bench table configs/qmnist_836/$table --out runs/qmnist_836/$table "$@"
done
exec .venv/bin/pfl-bench leaderboard runs/qmnist_836 --audit --out runs/qmnist_836/leaderboard.html --force
