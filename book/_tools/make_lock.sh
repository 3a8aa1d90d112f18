#!/usr/bin/env bash
# Write requirements.lock: one set of pins for Python 3.11 to 3.13 on every platform.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
.venv/bin/python -m venv "$folder/uv"
"$folder/uv/bin/pip" install --quiet "uv==$UV_VERSION"

cp requirements.lock "$folder/resolved" 2>/dev/null || true # uv keeps the pins it finds there
"$folder/uv/bin/uv" pip compile pyproject.toml --extra book --extra test --quiet \
  --universal --python-version 3.11 --fork-strategy fewest ${UPGRADE:+--upgrade} \
  --no-annotate --no-header --no-emit-index-url --output-file "$folder/resolved"

# CUDA's packages are left out: they belong to one build of torch, which pins them itself.
{
  echo '# Every package of the book, pinned, for Python 3.11 to 3.13. Made by `make lock`; do not edit.'
  echo '# Used as constraints: pip install -c requirements.lock -e ".[book,test]"'
  grep -vE '^(#|--|nvidia-|cuda-|triton=)' "$folder/resolved"
} >"$folder/lock"
mv "$folder/lock" requirements.lock
echo "requirements.lock holds $(grep -c == requirements.lock) packages."
