#!/usr/bin/env bash
# Builds an environment in which the real SGLang server runs on a CPU, apart from the project's own.
#
#   bash tests/sglang/install.sh [DIR]          DIR defaults to .venv-sglang in the repository
#
# Idempotent: a stamp holds the hash of everything the environment is made from, and an environment that
# carries the present hash is left alone. SGLang's ordinary install is CUDA only, so it is put in without
# its dependencies over a CPU build of torch, which must come first or pip fetches the CUDA one. torchvision
# comes CUDA-built too and would break `import transformers` for everybody; it goes, next to the stand-ins of
# shims/, into a folder that only the SGLang process has on its PYTHONPATH. Python compiles what is imported, once;
# pip would take minutes to compile the rest.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
env_dir="${1:-$here/../../.venv-sglang}"
python="${PYTHON:-python3}"
shims="$env_dir/cpu-shims"
stamp="$env_dir/.stamp"
wanted="$(cat "$here/install.sh" "$here/requirements.txt" "$here"/shims/*.py "$here"/shims/*/*.py | sha256sum | cut -d' ' -f1)"

if [[ -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]]; then
    echo "SGLang environment is up to date: $env_dir"
    exit 0
fi

rm -f "$stamp"
[[ -x "$env_dir/bin/python" ]] || "$python" -m venv "$env_dir"
pip=("$env_dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile)

"${pip[@]}" torch==2.13.0
"${pip[@]}" --requirement "$here/requirements.txt"
"${pip[@]}" --no-deps sglang==0.5.23 sglang-router==0.3.2
rm -rf "$shims"
"${pip[@]}" --no-deps --target "$shims" torchvision==0.28.0
cp -r "$here/shims/." "$shims/"

if ! "$env_dir/bin/python" -c 'import sys, torch; sys.exit(bool(torch.version.cuda))'; then
    echo "$env_dir has a CUDA build of torch, which SGLang's CPU engine cannot use. Install a CPU build and try again:" >&2
    echo "  $env_dir/bin/python -m pip install --force-reinstall --no-deps torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu" >&2
    exit 1
fi
PYTHONDONTWRITEBYTECODE="" PYTHONPATH="$shims" SGLANG_USE_CPU_ENGINE=1 "$env_dir/bin/python" -c \
    'import sglang; print("SGLang", sglang.__version__)'
echo "$wanted" > "$stamp"
