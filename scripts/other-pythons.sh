#!/bin/sh
# Runs the fast tests with the other Pythons that tidemill supports, where this machine has them:
#
#     scripts/other-pythons.sh                    Python 3.12 and 3.13, most fast tests
#     scripts/other-pythons.sh tests/log -x       these tests only
#
# VERSIONS names the versions. The packages go into environments of their own, build/python3.12 and so
# on. A version that is not installed is named and left out: nothing is downloaded but packages.
set -u

cd "$(dirname "$0")/.."
failed=0

# find_python VERSION: prints an interpreter of this version that makes environments, if there is one.
# A name on PATH is not enough: pyenv leaves stubs there that do not run.
find_python() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/"python$1"; do
        if "$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

for version in ${VERSIONS:-3.12 3.13}; do
    if ! found=$(find_python "$version"); then
        echo "Python $version: not installed here, so its tests were not run"
        continue
    fi
    venv=build/python$version
    python=$venv/bin/python
    if ! "$python" -m uv --version >/dev/null 2>&1; then
        "$found" -m venv --clear "$venv" &&
            "$python" -m pip install --quiet --disable-pip-version-check uv || { failed=1; continue; }
    fi
    "$python" -m uv pip install --quiet --python "$python" \
        --editable ".[demo,postgres,mariadb,mysql,duckdb,re2,redis,search,test]" || { failed=1; continue; }
    echo "Python $version: $("$python" --version) in $venv"
    if [ $# -gt 0 ]; then
        "$python" -m pytest -q "$@" || failed=1
    else
        # Left out are tests that no version of Python can change, and long random runs.
        "$python" -m pytest -q -n "${WORKERS:-4}" -m fast --ignore=tests/simulation \
            --ignore=tests/docs --ignore=tests/bench --ignore=tests/test_structure.py \
            --ignore=tests/test_lanes.py --ignore=tests/test_packaging.py || failed=1
    fi
done
exit $failed
