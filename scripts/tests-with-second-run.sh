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
folder=${TEST_FAILURES:+$(dirname "$TEST_FAILURES")}
folder=${folder:-build/ci}
mkdir -p "$folder"

first=$folder/$target.failures
second=$folder/$target.failures-of-second-run
ids=$folder/$target.again
rm -f "$first" "$second" "$ids"

TEST_FAILURES=$first "${MAKE:-make}" --no-print-directory "$target"
code=$?
if ((code == 0)); then
    exit 0
fi
touch "$first"
[[ -n "${TEST_FAILURES:-}" ]] && cat "$first" >>"$TEST_FAILURES"

# "FAILED tests/test_x.py::test_y (call)": the name without the phase.
sed -n 's/^FAILED \(.*::.*\) ([^()]*)$/\1/p' "$first" | sort -u >"$ids"
failed=$(wc -l <"$ids")
if ((failed == 0)) || ((failed > most)) || grep -q '^FAILED .* (collection)$' "$first"; then
    exit "$code"
fi

echo "$failed tests failed. They run again, alone:"
TEST_FAILURES=$second "${MAKE:-make}" --no-print-directory "$target" WORKERS=0 ARGS="@$ids" || {
    code=$?
    [[ -n "${TEST_FAILURES:-}" && -f "$second" ]] && cat "$second" >>"$TEST_FAILURES"
    exit "$code"
}
sed 's/^/UNSTABLE test: /' "$ids" | tee -a "$folder/unstable"
