#!/usr/bin/env bash
# Installs vime on a GPU host without containers: bash ci/docker/install-cuda.sh [FOLDER]   (a virtual environment is made there; default .venv-cuda)
set -euo pipefail
cd "$(dirname "$0")/../.."
place=${1:-.venv-cuda}
python3.11 -m venv "$place"
"$place/bin/pip" install -r constraints/cuda.txt
"$place/bin/pip" install --no-deps -e .
"$place/bin/vime" doctor --platform cuda
