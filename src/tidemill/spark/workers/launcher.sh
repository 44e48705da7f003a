#!/bin/sh
# Spark runs this instead of the interpreter (see __init__.py). -I and -S keep the start of Python
# short: handoff.py needs nothing but the standard library.
exec "${TIDEMILL_WORKER_PYTHON:-python3}" -IS "${0%/*}/handoff.py" "$@"
