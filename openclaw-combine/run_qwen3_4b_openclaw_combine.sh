#!/usr/bin/env bash
# Binary RL and on-policy distillation together on Qwen3-4B with SGLang, eight GPUs split between training and serving.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../slime/scripts/run_method.sh"
run_method qwen3-4b "$@"
