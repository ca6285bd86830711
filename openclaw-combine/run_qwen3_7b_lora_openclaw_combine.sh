#!/usr/bin/env bash
# Binary RL and on-policy distillation together, training a LoRA adapter, under the published name: the nearest Qwen3 to 7B parameters is 8B.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/run_qwen3_8b_lora_openclaw_combine.sh" "$@"
