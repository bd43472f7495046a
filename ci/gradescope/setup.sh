#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image of the autograder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -f "$here/course.env" ]; then source "$here/course.env"; fi
venv=${GRADER_VENV:-/opt/pytest-ddp}
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu} # torch without CUDA: a tenth of the size

if command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3 python3-venv
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: choose Ubuntu 24.04 as the base image")'
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --no-cache-dir torch --index-url "$torch_index"
# shellcheck disable=SC2086  # PACKAGES is a list
"$venv/bin/pip" install --quiet --no-cache-dir "$here"/pytest_ddp-*.whl ${PACKAGES:-}
if [[ "$torch_index" == */cpu ]]; then # a package of the course may have brought another torch
    "$venv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda and "torch has been replaced by one with CUDA: see PACKAGES")'
fi
"$venv/bin/pytest-ddp-grade" --help >/dev/null
chmod -R go-rwx "$here" # the rubric and the seed are not for submissions
