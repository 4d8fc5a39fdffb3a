# Sourced by the other scripts: makes .venv/ in the checkout if it is missing or out of date.
# shellcheck shell=bash

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "pfl-bench needs Python 3.11 or newer and found none; install one, or name it: PYTHON=/path/to/python3" >&2
    exit 2
}

# ensure_environment TARGET: install the checkout, TARGET being "." or ".[dev]".
ensure_environment() {
    local target=$1 stamp python
    stamp=.venv/.installed-$(cat pyproject.toml constraints.txt <(echo "$target") | cksum | tr ' ' -)
    if [ -e "$stamp" ]; then
        return
    fi
    python=$(find_python) || exit 2
    if [ ! -x .venv/bin/python ]; then
        echo "making .venv with $("$python" --version)" >&2
        "$python" -m venv .venv
    fi
    echo "installing $target (PyTorch is several GB: some minutes the first time)" >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "$target"
    touch "$stamp"
}

# ensure_openimage STORE MIN_EXAMPLES: prepare STORE when it is missing, of the files in OPENIMAGE (a folder; default
# data/openimage), without clients who have fewer than MIN_EXAMPLES pictures.
ensure_openimage() {
    [ -e "$1" ] || .venv/bin/pfl-bench data prepare openimage min_examples="$2" \
        --source "${OPENIMAGE:-data/openimage}" --out "$1"
}
