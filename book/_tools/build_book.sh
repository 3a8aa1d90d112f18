#!/usr/bin/env bash
# Build the pages. Usage: build_book.sh OUTPUT_FOLDER WORKERS
set -euo pipefail

# The build alone would run one notebook after the other, and know no change but the notebook's own.
.venv/bin/python book/_tools/execute_notebooks.py --workers "$2"

# Without --all an unchanged second run would pass although a notebook fails.
.venv/bin/jupyter-book build . --all -W --keep-going
test -s "$1/index.html"
