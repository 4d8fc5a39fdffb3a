#!/usr/bin/env bash
# QMNIST-836's table 1: user-level privacy on real writers, 18 rows. Makes mnist.h5 and mnist-scattering.h5 in the checkout when they
# are missing, of MNIST's and QMNIST's files in MNIST (a folder; default data/mnist, to which they are downloaded).
# Five seeds: --seeds 5. Finished runs are not run again, interrupted ones resume.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment "."
if [ ! -e mnist.h5 ] || [ ! -e mnist-scattering.h5 ]; then
    [ -n "${MNIST:-}" ] || .venv/bin/pfl-bench data download mnist --out data/mnist
fi
[ -e mnist.h5 ] || .venv/bin/pfl-bench data prepare mnist --source "${MNIST:-data/mnist}" --out mnist.h5
[ -e mnist-scattering.h5 ] ||
    .venv/bin/pfl-bench data prepare mnist features=scattering --source "${MNIST:-data/mnist}" --out mnist-scattering.h5
exec .venv/bin/pfl-bench table configs/qmnist_836/table1 --launcher local "$@"
