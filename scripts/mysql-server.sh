#!/bin/sh
# Gets a MySQL server for the tests where the distribution has none: Debian sid's mysql-server-core,
# on Debian amd64 or arm64, as root, from the mirror that apt is set up with. Nothing is installed:
# apt's lists, dpkg's database and the system's libraries stay as they are. The server runs with the
# dynamic linker and the C library of its own release.
#
# Usage: scripts/mysql-server.sh [FOLDER]    (default: /opt/mysql; tests look for FOLDER/bin/mysqld)
set -eu

prefix=${1:-/opt/mysql}
suite=${DEBIAN_SUITE:-sid}

fail() {
    echo "mysql-server.sh: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "run it as root"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "apt-get and dpkg-deb are needed"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keyring" ] || fail "$keyring is missing: this is not Debian"
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -v security | head -n 1)
[ -n "$mirror" ] || fail "apt has no lists: run apt-get update"
architecture=$(dpkg --print-architecture)
case $architecture in
    amd64) linker=usr/lib64/ld-linux-x86-64.so.2 libraries=usr/lib/x86_64-linux-gnu ;;
    arm64) linker=usr/lib/ld-linux-aarch64.so.1 libraries=usr/lib/aarch64-linux-gnu ;;
    *) fail "no server is known for $architecture" ;;
esac

apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
chmod 755 "$apt"
mkdir -p "$apt/none.d" "$apt/lists/partial" "$apt/cache/archives/partial"
: > "$apt/status"
echo "deb [arch=$architecture signed-by=$keyring] $mirror $suite main" > "$apt/sources.list"
cat > "$apt/apt.conf" <<CONF
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "$apt/none.d";
Dir::Etc::preferences "$apt/none";
Dir::Etc::preferencesparts "$apt/none.d";
Dir::State::Lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::State::extended_states "$apt/extended_states";
Dir::Cache "$apt/cache";
Dir::Log "$apt";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
CONF
export APT_CONFIG="$apt/apt.conf"
apt-get -qq update
# The empty status file makes apt resolve all that the server needs, the C library too.
apt-get -qq install -y --no-install-recommends --download-only mysql-server-core

rm -rf "$prefix/root" "$prefix/bin"
mkdir -p "$prefix/root" "$prefix/bin"
for package in "$apt"/cache/archives/*.deb; do
    case ${package##*/} in
        perl* | libperl* | gcc-* | libc-gconv* | libdb5* | libgdbm*) ;; # for scripts of the package
        *) dpkg-deb -x "$package" "$prefix/root" ;;
    esac
done
[ -e "$prefix/root/usr/sbin/mysqld" ] || fail "the packages hold no server"
cat > "$prefix/bin/mysqld" <<RUN
#!/bin/sh
exec $prefix/root/$linker --argv0 $prefix/bin/mysqld --library-path $prefix/root/$libraries \\
    $prefix/root/usr/sbin/mysqld "\$@"
RUN
chmod 755 "$prefix/bin/mysqld"
"$prefix/bin/mysqld" --no-defaults --version
