#!/usr/bin/env bash
# Binary RL and on-policy distillation together under its other published name: Qwen3-8B; with --lora it trains an adapter.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/run_qwen3_8b_openclaw_combine.sh" "$@"
