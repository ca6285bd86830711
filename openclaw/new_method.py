"""Scaffolds a method's folder that runs as it is: `openclaw-rl new-method my-method`.

    my-method/  README.md · custom_loss.py · custom_rollout.py · run_tiny_my_method.sh

The folder is complete: nothing in the core knows a method's name. It starts out as Binary RL.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from string import Template

from slime.errors import ConfigError

_ROOT = Path(__file__).resolve().parents[1]
_SHARED = "slime/scripts/run_method.sh"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_README = Template("""# $title

Describe here, in one sentence, the signal that the method learns from.

| file | defines |
| --- | --- |
| [custom_rollout.py](custom_rollout.py) | which turns become samples, and their extra data |
| [custom_loss.py](custom_loss.py) | the loss |
| [$script]($script) | a run of the tiny model on this machine, without a GPU |

```bash
bash $script
```

Then chat with `http://127.0.0.1:8000/v1` from any OpenAI client; your next message is the feedback on the reply before.
To train on recorded conversations instead: `DATA_PATH=conversations.jsonl bash $script`. Append flags to the script;
`--print-config` prints the resolved configuration. docs/plugins.md lists the arguments of a loss and a rollout.
""")

_LOSS = Template('''"""The loss of $title: tensors are over the trainable tokens of a micro-batch, [N]."""

from __future__ import annotations

from slime.algorithms.objective import Objective
from torch import Tensor


def compute_loss(advantages: Tensor, policy_objective: Objective) -> tuple[Tensor, dict[str, Tensor]]:
    """The configured objective (clipped surrogate, KL, entropy) on this method's advantages.

    Add parameters by name for other inputs, e.g. `policy_logprobs` or `rewards`; return (loss, metrics).
    """
    return policy_objective(advantages)
''')

_ROLLOUT = Template('''"""The rollout of $title: turns judged turns into samples."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from slime.rollout.context import RolloutContext
from slime.rollout.live import NotTrained, live_samples, sample_of
from slime.types import SampleGroup, Turn, Verdict


def generate_rollout(ctx: RolloutContext) -> AsyncGenerator[SampleGroup]:
    """Samples from the judged turns of live conversations; `ctx` is slime/slime/rollout/context.py."""
    return live_samples(ctx, make_sample)


async def make_sample(turn: Turn, verdict: Verdict) -> SampleGroup | NotTrained:
    """One sample per turn, its score the reward; `NotTrained` skips a turn and gives the reason."""
    if not verdict.has_reward:
        return NotTrained("it has no score")
    return sample_of(turn, verdict)
''')

_SCRIPT = Template("""#!/usr/bin/env bash
# Trains the tiny model with $title on this machine, without a GPU: chat with http://127.0.0.1:8000/v1.
set -euo pipefail
# shellcheck source=/dev/null
source $shared
run_method tiny "$$@"
""")


def new_method(name: str, directory: Path) -> Path:
    """Write the folder `directory/name` and return its path.

    Raises:
        ConfigError: the name is invalid as a folder and package, or the folder exists.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"new-method {name!r}: use lower case with dashes, e.g. my-method")
    if not (_ROOT / _SHARED).is_file():
        raise ConfigError(f"new-method needs a checkout of the repository: {_ROOT / _SHARED} does not exist")
    folder = directory.resolve() / name
    if folder.exists():
        raise ConfigError(f"new-method {name}: {folder} already exists; choose another name or --dir")
    is_inside = folder.parent == _ROOT
    script = f"run_tiny_{name.replace('-', '_')}.sh"
    words = {
        "title": name.replace("-", " ").capitalize(),
        "script": script,
        "shared": f'"$(dirname "${{BASH_SOURCE[0]}}")/../{_SHARED}"'
        if is_inside
        else shlex.quote(str(_ROOT / _SHARED)),
    }
    files = {"README.md": _README, "custom_loss.py": _LOSS, "custom_rollout.py": _ROLLOUT, script: _SCRIPT}
    try:
        folder.mkdir(parents=True)
        for file_name, template in files.items():
            (folder / file_name).write_text(template.substitute(words), encoding="utf-8")
        (folder / script).chmod(0o755)
    except OSError as error:
        raise ConfigError(f"new-method {name}: {error}") from None
    return folder
