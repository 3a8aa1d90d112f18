#!/usr/bin/env bash
# Make .venv with the pinned packages, or bring it up to date. PYTHON=... chooses the interpreter.
set -uo pipefail

die() {
  printf '\nError: %s\n' "$@" >&2
  exit 1
}

fits() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
  command -v "$PYTHON" >/dev/null || die "PYTHON=$PYTHON is not a command on this machine."
  fits "$PYTHON" || die "the book needs Python 3.11, 3.12 or 3.13, and PYTHON=$PYTHON is $("$PYTHON" --version 2>&1)."
  python=$PYTHON
else
  python=
  for candidate in python3.13 python3.12 python3.11 python3 python; do
    if fits "$candidate"; then python=$candidate && break; fi
  done
  [ -n "$python" ] || die "the book needs Python 3.11, 3.12 or 3.13, and none was found (python3 is $(python3 --version 2>&1 | tail -n 1)). Install one, or name it: make PYTHON=/path/to/python3.12 ..."
fi

if [ -L .venv ]; then
  die ".venv is a link to $(readlink -f .venv), which belongs to another copy of the book." \
    "To install from here would change it there. Remove the link, and make builds an environment of its own."
fi

if ! fits .venv/bin/python; then
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$python has no venv module. On Debian and Ubuntu: sudo apt install python3-venv"
  echo "Making .venv with $("$python" --version) ..."
  rm -rf .venv
  "$python" -m venv .venv || die "$python -m venv .venv failed."
fi

# pip prints one line per package: show them as dots.
echo "Installing the pinned packages into .venv (some minutes the first time; the log is .venv/install.log)"
if .venv/bin/python -m pip install --progress-bar off -c requirements.lock -e '.[book,test]' 2>&1 |
  tee .venv/install.log | awk '/^(Collecting|Installing)/ {printf "."; fflush()} END {print ""}'; then
  echo "Installed."
else
  grep -iE 'error|could not|no matching|connection' .venv/install.log | tail -n 6 >&2
  die "pip could not install the packages; the first run needs the network (the package index). The lines above are pip's own; all of them are in .venv/install.log."
fi
