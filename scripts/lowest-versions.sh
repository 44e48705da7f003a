#!/bin/sh
# Runs tests with the oldest versions of all packages that pyproject.toml allows:
#
#     scripts/lowest-versions.sh                 most fast tests, and two pipelines on Spark
#     scripts/lowest-versions.sh tests/log -x    these tests only
#
# The packages go into an environment of their own, build/lowest. PYTHON names the interpreter.
set -eu

cd "$(dirname "$0")/.."
venv=build/lowest
python=$venv/bin/python

if ! "$python" -m uv --version >/dev/null 2>&1; then
    "$(scripts/find-python.sh)" -m venv --clear "$venv"
    "$python" -m pip install --quiet --disable-pip-version-check uv
fi
# Only what pyproject.toml names is old; what those packages need is as new as they allow.
"$python" -m uv pip install --quiet --upgrade --python "$python" --resolution lowest-direct \
    --editable ".[demo,jre,postgres,mariadb,mysql,duckdb,re2,redis,search,test]"

echo "Oldest versions:"
"$python" - <<'EOF'
import re, tomllib
from importlib.metadata import version
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
runtime = ("spark", "postgres", "mariadb", "mysql", "duckdb", "re2", "redis", "search", "jre", "demo")
needed = project["dependencies"] + [
    each for extra in runtime for each in project["optional-dependencies"][extra]
]
wrong = []
for requirement in needed:
    name, _, bound = re.match(r"([\w-]+)(\[.*?\])?>=([\w.]+)|([\w-]+)", requirement).groups()[:3]
    if name is None:
        continue  # tidemill itself
    installed = version(name)
    print(f"  {name} {installed}")
    if [int(n) for n in installed.split(".")[:3]] > [int(n) for n in (bound + ".0.0").split(".")[:3]]:
        wrong.append(f"{name} {installed} is newer than {bound}")
if wrong:
    raise SystemExit("\n".join(wrong))
EOF

if [ $# -gt 0 ]; then
    exec "$python" -m pytest -q "$@"
fi
# Left out are tests that no version of a package can change: models, the engine, compiled code, prose,
# the tests' own tools. What the engine needs of packages is tested with the protocols.
failed=0
"$python" -m pytest -q -n "${WORKERS:-4}" -m fast -W ignore \
    --ignore=tests/simulation --ignore=tests/state --ignore=tests/engine --ignore=tests/docs \
    --ignore=tests/bench --ignore=tests/test_bench.py --ignore=tests/test_native.py \
    --ignore=tests/test_structure.py --ignore=tests/test_lanes.py --ignore=tests/test_packaging.py \
    --ignore=tests/test_failures.py --ignore=tests/test_forks.py --ignore=tests/test_memory.py \
    --ignore=tests/test_ports.py || failed=1
# Two pipelines on Spark: windows, a join with a table, a topic written exactly once, a database. And the
# reference, which is made of what typer knows.
"$python" -m pytest -q tests/demo/test_examples.py tests/docs/test_reference.py || failed=1
exit $failed
