#!/bin/sh
# Checks that tidemill can be installed into the same environment as other packages of its field:
#
#     scripts/resolve-beside.sh                        quixstreams, FastStream and Airflow
#     scripts/resolve-beside.sh "bytewax>=0.21"        these packages only
#
# It resolves versions and installs nothing. Each set is resolved with the newest versions, and with the
# oldest ones that tidemill and the others name: bounds that exclude each other fail. It needs the
# package index, and GitHub for Airflow's constraints; it says so if that does not answer.
set -u

cd "$(dirname "$0")/.."
venv=build/resolve
python=$venv/bin/python
if ! "$python" -m uv --version >/dev/null 2>&1; then
    "$(scripts/find-python.sh)" -m venv --clear "$venv" &&
        "$python" -m pip install --quiet --disable-pip-version-check uv || exit 1
fi

failed=0
shown='^(apache-airflow|confluent-kafka|faststream|pandas|pyarrow|pydantic|pyspark|quixstreams|rich|structlog|typer)=='

# resolve PYTHON RESOLUTION EXTRAS PACKAGES [CONSTRAINTS]
resolve() {
    what="Python $1, $2 versions: tidemill$3 and $4${5:+, with its constraints}"
    { echo "tidemill$3 @ file://$PWD"; printf '%s\n' $4; } >"$venv/in.txt"
    if "$python" -m uv pip compile --quiet --no-header --python-version "$1" --resolution "$2" \
        ${5:+--constraint "$5"} --output-file "$venv/out.txt" --upgrade "$venv/in.txt" \
        >/dev/null 2>"$venv/error.txt"; then
        echo "ok      $what"
        grep -E "$shown" "$venv/out.txt" | tr '\n' ' ' | fold -s -w 90 | sed 's/^/        /'
        echo
    else
        echo "FAILED  $what"
        sed 's/^/        /' "$venv/error.txt"
        failed=1
        return 1
    fi
}

if [ $# -eq 0 ]; then
    given=no
    # Floors, so that a conflict fails instead of being solved with a version of years ago.
    set -- "quixstreams>=3.20" "faststream[confluent,kafka]>=0.6" "apache-airflow>=3.1"
fi
for version in 3.11 3.13; do
    for packages in "$@"; do
        resolve "$version" highest "[demo,postgres,mariadb,mysql,duckdb,re2,redis,search,jre]" "$packages"
        resolve "$version" lowest-direct "[spark]" "$packages"
    done
done

if [ "${given:-yes}" = no ]; then
    # Airflow's constraints are for its own installation. What they pin is what its users have.
    resolve 3.11 highest "" "apache-airflow" >/dev/null
    airflow=$(sed -n 's/^apache-airflow==//p' "$venv/out.txt")
    address=https://raw.githubusercontent.com/apache/airflow/constraints-$airflow/constraints-3.11.txt
    if "$python" -c 'import sys, urllib.request as u; u.urlretrieve(sys.argv[1], sys.argv[2])' \
        "$address" "$venv/constraints.txt" 2>/dev/null; then
        resolve 3.11 highest "" "apache-airflow==$airflow" "$venv/constraints.txt"
    else
        echo "skipped Airflow's constraints: $address does not answer"
    fi
fi
exit $failed
