#!/usr/bin/env bash
# On-policy distillation on Qwen3-8B, training a LoRA adapter instead of all weights.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../slime/scripts/run_method.sh"
run_method qwen3-8b --lora "$@"
