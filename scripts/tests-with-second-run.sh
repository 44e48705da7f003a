#!/usr/bin/env bash
# Runs a make target that runs tests. If a few tests fail, runs those once more, alone:
#
#     scripts/tests-with-second-run.sh test
#     scripts/tests-with-second-run.sh test-lowest
#
# Only .ci/run uses it. It passes if each test that failed passes the second time. Such a test is
# unstable, which is a defect of the test or of tidemill: a line "UNSTABLE test: ..." names each, and the
# file of TEST_FAILURES (tests/support/failures.py) keeps what failed. More than MOST_UNSTABLE failures,
# tests that cannot be collected, and runs that end in another way fail at once.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$1
most=${MOST_UNSTABLE:-5}
failures=${TEST_FAILURES:-build/ci/failures}
folder=$(dirname "$failures")
mkdir -p "$folder"

first=$folder/$target.failures
ids=$folder/$target.again
touch "$failures"
before=$(wc -c <"$failures")

# Each failure is in the file at once, so it is there too when a run is stopped.
TEST_FAILURES=$failures "${MAKE:-make}" --no-print-directory "$target"
code=$?
if ((code == 0)); then
    exit 0
fi
tail -c "+$((before + 1))" "$failures" >"$first"

# "FAILED tests/test_x.py::test_y (call)": the name without the phase.
sed -n 's/^FAILED \(.*::.*\) ([^()]*)$/\1/p' "$first" | sort -u >"$ids"
failed=$(wc -l <"$ids")
if ((failed == 0)) || ((failed > most)) || grep -q '^FAILED .* (collection)$' "$first"; then
    exit "$code"
fi

echo "$failed tests failed. They run again, alone:"
TEST_FAILURES=$failures "${MAKE:-make}" --no-print-directory "$target" WORKERS=0 ARGS="@$ids" || exit
sed 's/^/UNSTABLE test: /' "$ids" | tee -a "$folder/unstable"
