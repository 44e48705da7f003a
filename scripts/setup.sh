#!/bin/sh
# Creates the virtual environment and installs tidemill in it, with extras:
#
#     scripts/setup.sh demo test
#
# Does nothing, quickly, when they are installed and neither pyproject.toml nor the C sources have
# changed since. As root on Debian or Ubuntu, it first installs what is missing of Python, its module
# venv, its headers and a C compiler; elsewhere it names the packages. Installs a Java (the extra jre)
# only where Spark would find none: neither in JAVA_HOME nor on PATH, 17 or newer. VENV names the
# environment's folder, PYTHON the interpreter to make it with.
set -eu

cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
stamp=$venv/.tidemill-extras

has_java() {
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)"; do
        [ -n "$java" ] && [ -x "$java" ] || continue
        version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
        [ "${version:-0}" -ge 17 ] && return 0
    done
    return 1
}

# What it can't install is named by the command that needs it.
apt_install() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return 0
    echo "Installing $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || return 0
    apt-get install -qq -y --no-install-recommends "$@" >/dev/null || return 0
}

wanted="$*"
case " $wanted " in
    *" demo "* | *" spark "*) has_java || wanted="$wanted jre" ;;
esac

# An environment is bound to its path and its interpreter; a moved or broken one is made again.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
    [ "$("$venv/bin/python" -c 'import sys; print(sys.prefix)')" != "$(cd "$venv" && pwd -P)" ]; then
    scripts/find-python.sh >/dev/null 2>&1 || apt_install python3 python3-venv
    python=$(scripts/find-python.sh)
    echo "Making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi

installed=""
if [ -f "$stamp" ]; then
    installed=$(cat "$stamp")
    stale=$(find pyproject.toml scripts/build_native.py src/native -newer "$stamp")
else
    stale=yes
fi
missing=""
for extra in $wanted; do
    case " $installed " in
        *" $extra "*) ;;
        *) missing="$missing $extra" ;;
    esac
done
[ -z "$stale" ] && [ -z "$missing" ] && exit 0

if ! "$venv/bin/python" scripts/build_native.py --check 2>/dev/null; then
    headers=$("$venv/bin/python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')
    apt_install gcc libc6-dev "$headers"
    "$venv/bin/python" scripts/build_native.py --check
fi

all=$(printf '%s\n' $installed $wanted | sort -u | tr '\n' ' ' | sed 's/ $//')
echo "Installing tidemill with: ${all:-no extras}"
began=$(date +%s)
rm -f "$stamp"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --editable ".$( [ -z "$all" ] || printf '[%s]' "$(echo "$all" | tr ' ' ',')" )"
printf '%s\n' "$all" >"$stamp"
echo "Installed in $(($(date +%s) - began)) s"
