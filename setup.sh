#!/usr/bin/env bash
# Installs what everything else here needs: the Debian packages that are missing, and .venv with the pinned Python
# packages. Quick when there is nothing to do. Called by `make setup`; it needs root only when a package is missing.
set -euo pipefail
cd "$(dirname "$0")"
export PATH="$PATH:/usr/sbin:/sbin"
PYTHON="${PYTHON:-python3}"
VENV="${VENV:-.venv}"

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# --- Debian packages: one for each command that is missing -------------------------------------------------------
missing=()
need() { # need PACKAGES COMMAND...: the packages, unless every command is there
    local packages="$1" command
    shift
    for command in "$@"; do
        command -v "$command" >/dev/null || { missing+=($packages); return; }
    done
}
need python3 "$PYTHON"
need mininet mnexec
need net-tools ifconfig
need iproute2 ip tc
need iputils-ping ping
need ethtool ethtool
need procps ps
need etcd-server etcd
need "gcc libc6-dev" cc
if command -v cc >/dev/null && ! echo '#include <linux/if_packet.h>' | cc -E -x c - >/dev/null 2>&1; then
    missing+=(libc6-dev)
fi
if command -v "$PYTHON" >/dev/null && ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    missing+=(python3-venv)
fi
if ! command -v "$PYTHON" >/dev/null; then
    missing+=(python3-venv)
fi

if [ ${#missing[@]} -gt 0 ]; then
    say "Debian packages: ${missing[*]}"
    if ! command -v apt-get >/dev/null; then
        fail "this system has no apt-get; install the equivalents of: ${missing[*]}"
    fi
    if [ "$(id -u)" -ne 0 ]; then
        fail "not root, so it cannot install them. Run: sudo apt-get install --no-install-recommends ${missing[*]}
       and then make setup again. The service of etcd-server is not needed: sudo systemctl disable --now etcd"
    fi
    log="$(mktemp)"
    # Only programs are wanted, and no service: of etcd-server, which brings one, and of Open vSwitch, which mininet
    # recommends. Debian's scripts start no service while policy-rc.d refuses.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    else
        policy=
    fi
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
            >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        rm -f "$log"
        fail "apt-get could not install ${missing[*]} (its last lines are above). Is the network reachable?"
    fi
    rm -f "$log"
    [ -z "$policy" ] || { rm -f "$policy"; trap - EXIT; }
    case " ${missing[*]} " in
        *" etcd-server "*) ! command -v systemctl >/dev/null || systemctl disable --quiet --now etcd.service >/dev/null 2>&1 || true ;;
    esac
fi

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$PYTHON" --version) is too old: 3.11 or newer is needed. Name another with: make setup PYTHON=python3.12"

# --- Python packages: again only when the list or the interpreter changed ----------------------------------------
wanted="$({ cat requirements.txt pyproject.toml softswitch/pyproject.toml; "$PYTHON" -c 'import sys; print(sys.version, sys.prefix)'; } | sha256sum | cut -d' ' -f1)"
stamp="$VENV/.installed"
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$wanted" ]; then
    say "$VENV: everything is installed"
    exit
fi
if [ -d "$VENV" ] && [ "$("$VENV/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null || true)" != \
                       "$("$PYTHON" -c 'import sys; print(sys.version)')" ]; then
    say "$VENV was made by another Python and is made anew"
    rm -rf "$VENV"
fi
[ -x "$VENV/bin/pip" ] || "$PYTHON" -m venv "$VENV"
say "Python packages into $VENV (torch is large: some minutes the first time)"
"$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --requirement requirements.txt ||
    fail "pip could not install requirements.txt (its message is above). Is the package index reachable?
       A mirror is named with PIP_INDEX_URL, a folder of wheels with PIP_FIND_LINKS."
# With the setuptools of the requirements: pip downloads nothing. `inart emulate` starts switches of softswitch.
"$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation \
    --editable . --editable ./softswitch ||
    fail "pip could not install the commands inart and softswitch (its message is above)."
echo "$wanted" >"$stamp"
say "done: Python commands work as $VENV/bin/python -m ..., and $VENV/bin/inart is the command"
