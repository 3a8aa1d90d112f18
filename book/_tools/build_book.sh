#!/usr/bin/env bash
# Build the pages. Usage: build_book.sh OUTPUT_FOLDER
set -euo pipefail

# The execution cache knows the notebooks alone: without this, changed code or data would show old results.
mkdir -p _build
state=$(find cbo_lib book requirements.lock -name '*.py' -o -path '*/results/*' -type f -o -name '*.npz' \
  -o -name requirements.lock | LC_ALL=C sort | xargs cksum | cksum)
if [ "$state" != "$(cat _build/.library-state 2>/dev/null || true)" ]; then
  rm -rf _build/.jupyter_cache
  printf '%s\n' "$state" >_build/.library-state
fi

# Without --all an unchanged second run would pass although a notebook fails.
.venv/bin/jupyter-book build . --all -W --keep-going
test -s "$1/index.html"
