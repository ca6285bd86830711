#!/usr/bin/env bash
# On-policy distillation on Qwen3-4B, training a LoRA adapter instead of all weights.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../slime/scripts/run_method.sh"
run_method qwen3-4b --lora "$@"
