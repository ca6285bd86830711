#!/usr/bin/env bash
# The published name. There is no Qwen3 of 7B parameters: Binary RL and on-policy distillation together on the nearest, Qwen3-8B.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/run_qwen3_8b_openclaw_combine.sh" "$@"
