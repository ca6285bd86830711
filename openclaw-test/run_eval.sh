#!/usr/bin/env bash
# Evaluates checkpoints: `bash openclaw-test/run_eval.sh --model-path CKPT --eval-tasks "conversation,coding,tool-use"`.
#
# Starts the engine and the server itself, or asks a running one with --base-url; --help lists the rest.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ -x "$root/.venv/bin/python" ]]; then PATH="$root/.venv/bin:$PATH"; fi
exec python -m openclaw_test.evaluate "$@"
