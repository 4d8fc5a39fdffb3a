#!/usr/bin/env bash
# The tests, but the slow ones, with the lowest versions that pyproject.toml allows and the newest of what those need:
# bash scripts/lowest.sh [PYTEST ARGUMENTS]. The environment is build/lowest (several GB, made when it is missing or old).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
environment=$PWD/build/lowest
stamp=$environment/.installed-$(cksum <pyproject.toml | tr ' ' -)
if [ ! -e "$stamp" ]; then
    python=$(find_python) || exit 2
    rm -rf "$environment"
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check uv
    extras=()
    for extra in cluster completion docs hub optuna pandas reddit tensorboard timm wandb; do extras+=(--extra "$extra"); done
    "$environment/bin/uv" pip compile --quiet pyproject.toml "${extras[@]}" --resolution lowest-direct \
        --output-file "$environment/lowest.txt" >"$environment/resolution.log"
    "$environment/bin/uv" pip install --quiet --python "$environment/bin/python" \
        -r "$environment/lowest.txt" pytest pytest-xdist hypothesis selenium
    touch "$stamp"
fi
[ $# -gt 0 ] || set -- tests/pfl_bench tests/privacy tests/tasks tests/contracts
export PATH="$environment/bin:$PATH" PYTHONPATH=$PWD
# Old packages use what new ones deprecate; elsewhere a warning fails the test.
exec python -m pytest -n 2 --fast -W ignore::DeprecationWarning "$@"
