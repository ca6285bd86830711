"""The runtime environment of a Ray job as JSON: which of the shell's variables the job is given.

    ray job submit --runtime-env-json "$(python -m slime.config.job_environment)" -- …

A job does not see the shell it was submitted from. Settings go along; secrets do not, because Ray shows a job's
environment to whoever can see the job: set those where the cluster runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from slime.config.aliases import ALIASES
from slime.config.leaves import leaves

_ALSO = ("WANDB_MODE", "OMP_NUM_THREADS")
_RAYS_OWN = ("RAY_ADDRESS",)  # Ray tells a job which cluster it is in


def job_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The runtime environment, and the names of the secrets that stay behind."""
    names = {name: leaf.is_secret for leaf in leaves().values() for name in leaf.env}
    names |= {name: "API_KEY" in name for where, name in ALIASES if where == "env"}
    given = {name: is_secret for name, is_secret in names.items() if environ.get(name) and name not in _RAYS_OWN}
    forwarded = [name for name, is_secret in given.items() if not is_secret]
    forwarded += [name for name in _ALSO if environ.get(name)]
    variables = {name: environ[name] for name in sorted(forwarded)}
    return {"env_vars": variables, "excludes": [".git"]}, [name for name, is_secret in given.items() if is_secret]


if __name__ == "__main__":
    environment, left_behind = job_environment(os.environ)
    for secret in left_behind:
        print(f"note: {secret} is not sent with the job; set it where the cluster runs", file=sys.stderr)
    print(json.dumps(environment))
