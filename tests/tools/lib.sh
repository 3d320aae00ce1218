# Shared by the scripts in this folder; source it, do not run it.
# shellcheck shell=bash

TOOLS_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=versions.env
. "$TOOLS_DIR/versions.env"

# Everything that is fetched or built lands here, never in the repository.
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/dependency-watchdog"
mkdir -p "$CACHE"
# The pinned tools come before others of the same name.
PATH="$CACHE/bin:$PATH"

# Progress goes to stderr: stdout carries answers that other scripts read.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# fail "what went wrong" "what to do about it"
fail() {
  say "error: $1"
  [ $# -lt 2 ] || say "what to do: $2"
  exit 1
}

# Where setup puts what comes from PyPI: a virtual environment per set of versions.
python_environment() {
  printf '%s\n' "$CACHE/venv-$(cat "$TOOLS_DIR"/{build,requirements}.txt | cksum | cut -d' ' -f1)"
}

# pip_install ENVIRONMENT REQUIREMENTS [OPTION...]: what is listed there by hash, and nothing else. Without isolation,
# because pip would fetch what builds a package without a hash.
pip_install() {
  local python="$1/bin/python" requirements="$2"
  shift 2
  retry "$python" -m pip --disable-pip-version-check --quiet install --require-hashes --no-build-isolation "$@" \
    -r "$requirements" >&2 ||
    fail "pip could not install what $requirements lists" \
      "check the network and pip's configuration, then start this again"
}

have() { command -v "$1" >/dev/null 2>&1; }

# Runs its arguments as root, without a password prompt in the middle of a build.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif have sudo; then
    sudo "$@"
  else
    fail "'$*' needs root and there is no sudo" "run it as root, then start this again"
  fi
}

# lock NAME: held until this shell ends (also when it is killed), so that two runs do not build the same thing.
# The descriptor is closed in no child on purpose: a build that outlives a killed script still owns the folder.
lock() {
  mkdir -p "$CACHE/locks"
  exec {LOCK_FD}>"$CACHE/locks/$1"
  if ! flock --nonblock "$LOCK_FD"; then
    say "waiting for another run that prepares '$1'"
    flock "$LOCK_FD"
  fi
}

# retry COMMAND...: package mirrors drop a connection now and then.
retry() {
  local attempt
  for attempt in 1 2 3; do
    "$@" && return 0
    say "attempt $attempt of 3 failed: $*"
    sleep "$attempt"
  done
  return 1
}

# --- apt with package lists of our own: needs no root, leaves the machine's /etc/apt and lists alone, and
# --- knows Debian's sources and its packages for arm64, which most machines leave out.

# Debian's images for containers keep no package cache; without one every question takes a second.
apt_private() {
  local command="$1"
  shift
  "$command" \
    -o Dir::Etc::SourceList=/dev/null \
    -o Dir::Etc::SourceParts="$CACHE/apt/sources.d" \
    -o Dir::State="$CACHE/apt/state" \
    -o Dir::State::Status=/var/lib/dpkg/status \
    -o Dir::Cache="$CACHE/apt/cache" \
    -o Dir::Cache::pkgcache=pkgcache.bin \
    -o Dir::Cache::srcpkgcache=srcpkgcache.bin \
    -o APT::Architectures::="$(dpkg --print-architecture)" \
    -o APT::Architectures::=arm64 \
    -o Debug::NoLocking=1 \
    -o APT::Sandbox::User="" \
    "$@"
}

# Mirrors the machine's own Debian entries, with the sources added, and fetches their lists once a day.
apt_lists() {
  have apt-get || fail "this needs Debian's apt-get" "run it on Debian 12, or put the tools on PATH yourself"
  local sources="$CACHE/apt/sources.d" stamp="$CACHE/apt/updated-with-arm64" found=""
  if [ -n "$(find "$stamp" -mmin -1440 2>/dev/null)" ]; then
    return
  fi
  rm -rf "$sources"
  mkdir -p "$sources" "$CACHE/apt/state/lists/partial" "$CACHE/apt/cache/archives/partial"
  local file
  for file in /etc/apt/sources.list.d/debian.sources; do
    [ -f "$file" ] || continue
    sed 's/^Types:.*/Types: deb deb-src/' "$file" >"$sources/debian.sources"
    found=1
  done
  if [ -z "$found" ] && [ -f /etc/apt/sources.list ]; then
    sed -n -e 's/^deb \(.*debian.*\)/deb \1\ndeb-src \1/p' /etc/apt/sources.list >"$sources/debian.list"
    [ ! -s "$sources/debian.list" ] || found=1
  fi
  [ -n "$found" ] || fail "found no Debian entries under /etc/apt" \
    "add Debian 12's 'main' to /etc/apt/sources.list.d/debian.sources"
  say "fetching Debian's package lists"
  retry apt_private apt-get -qq update || fail "could not fetch Debian's package lists" \
    "check the network and the mirrors under /etc/apt, then start this again"
  touch "$stamp"
}

# extract_package NAME[:ARCHITECTURE]: unpacks Debian's binary package into $CACHE/debian/NAME-VERSION and prints that
# folder. Unpacked, not installed: a server package would start its daemon, and one for arm64 would not fit in.
extract_package() {
  apt_lists
  local name="$1" version target work
  version="$(apt_private apt-cache show --no-all-versions "$name" | sed -n 's/^Version: //p')"
  [ -n "$version" ] || fail "Debian has no package '$name'" "this is made for Debian 12 (bookworm)"
  target="$CACHE/debian/$name-$version"
  if [ ! -d "$target" ]; then
    say "fetching Debian's $name $version"
    mkdir -p "$CACHE/debian"
    work="$(mktemp -d "$CACHE/debian/unfinished.XXXXXX")"
    (cd "$work" && retry apt_private apt-get -qq download "$name=$version" >&2) ||
      fail "could not fetch Debian's package $name $version" "check the network, then start this again"
    dpkg -x "$work"/*.deb "$work/root" || fail "could not unpack $name $version" "is the disk full?"
    mv -T "$work/root" "$target"
    rm -rf "$work"
  fi
  printf '%s\n' "$target"
}

# install_packages NAME...: for build tools without daemons; asks for root only when one is missing.
install_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing Debian packages: ${missing[*]}"
  local apt=(as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
  retry "${apt[@]}" update >&2 &&
    retry "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2 ||
    fail "could not install ${missing[*]}" "run 'apt-get update && apt-get install ${missing[*]}' as root"
}
