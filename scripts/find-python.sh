#!/bin/sh
# Prints a Python 3.11 or newer that can make virtual environments: $PYTHON if set, else the first
# that serves. A name on PATH is not enough: version managers leave stubs there that do not run.
set -eu

probe='
import sys
if sys.version_info < (3, 11):
    sys.exit("is Python %d.%d" % sys.version_info[:2])
try:
    import venv, ensurepip
except ImportError as missing:
    sys.exit("lacks the module %s" % missing.name)
print(sys.executable)
'

seen=""
for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
    command -v "$name" >/dev/null 2>&1 || continue
    if answer=$("$name" -c "$probe" 2>&1); then
        printf '%s\n' "$answer"
        exit 0
    fi
    reason=$(printf '%s\n' "$answer" | sed -n 's/^\(is Python\|lacks the module\)/&/p' | head -n 1)
    seen="$seen
         $name: ${reason:-does not run}"
done

{
    echo "error: no Python 3.11 or newer with the modules venv and ensurepip was found.${seen:-
         there is no python3 on PATH}"
    echo "hint:  install one (Debian, Ubuntu: apt install python3 python3-venv), or name it:"
    echo "         make PYTHON=/path/to/python3.12 ..."
} >&2
exit 1
