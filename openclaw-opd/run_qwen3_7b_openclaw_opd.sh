#!/usr/bin/env bash
# The published name. There is no Qwen3 of 7B parameters: on-policy distillation on the nearest, Qwen3-8B.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/run_qwen3_8b_openclaw_opd.sh" "$@"
