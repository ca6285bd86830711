#!/usr/bin/env bash
# On-policy distillation on a tiny model, on this machine, without a GPU: talk to http://127.0.0.1:8000/v1 and it learns.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../slime/scripts/run_method.sh"
run_method tiny "$@"
