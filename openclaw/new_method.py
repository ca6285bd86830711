"""`openclaw-rl new-method my-method`: a folder that trains at once, to be changed line by line into a method.

    my-method/  README.md · custom_loss.py · custom_rollout.py · run_tiny_my_method.sh

The folder is complete: nothing in the core knows a method's name. It begins as Binary RL does.
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

What the method learns from, in one sentence.

| file | says |
| --- | --- |
| [custom_rollout.py](custom_rollout.py) | which turns become samples, and with what beside their tokens |
| [custom_loss.py](custom_loss.py) | what is minimised |
| [$script]($script) | the tiny model on this machine, without a GPU |

```bash
bash $script
```

Then talk to `http://127.0.0.1:8000/v1` with any OpenAI client; what you say next judges the reply before. Without
talking, on recorded conversations: `DATA_PATH=conversations.jsonl bash $script`. Flags go behind the script, and
`--print-config` shows what a run would be told. The names a loss and a rollout may ask for are in docs/plugins.md.
""")

_LOSS = Template('''"""The loss of $title: tensors are over the trainable tokens of a micro-batch, [N]."""

from __future__ import annotations

from slime.algorithms.objective import Objective
from torch import Tensor


def compute_loss(advantages: Tensor, policy_objective: Objective) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate, KL and entropy that the settings describe; what is of your method is the advantages.

    Ask for what else you need by its name, e.g. `policy_logprobs` or `rewards`, and return (loss, metrics).
    """
    return policy_objective(advantages)
''')

_ROLLOUT = Template('''"""The rollout of $title: what becomes a sample of a turn, once its next state was judged."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from slime.rollout.context import RolloutContext
from slime.rollout.live import NotTrained, live_samples, sample_of
from slime.types import SampleGroup, Turn, Verdict


def generate_rollout(ctx: RolloutContext) -> AsyncGenerator[SampleGroup]:
    """Judged turns of live conversations; `ctx` is slime/slime/rollout/context.py."""
    return live_samples(ctx, make_sample)


async def make_sample(turn: Turn, verdict: Verdict) -> SampleGroup | NotTrained:
    """One sample a turn, worth its score; `NotTrained` leaves a turn out, with the reason."""
    if not verdict.has_reward:
        return NotTrained("it has no score")
    return sample_of(turn, verdict)
''')

_SCRIPT = Template("""#!/usr/bin/env bash
# $title on a tiny model, on this machine, without a GPU: talk to http://127.0.0.1:8000/v1 and it learns.
set -euo pipefail
# shellcheck source=/dev/null
source $shared
run_method tiny "$$@"
""")


def new_method(name: str, directory: Path) -> Path:
    """Write the folder `directory/name`; returns it.

    Raises:
        ConfigError: the name is no name of a folder and a package, or the folder is there already.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"new-method {name!r}: write it in lower case with dashes, like my-method")
    if not (_ROOT / _SHARED).is_file():
        raise ConfigError(f"new-method needs the repository: there is no {_ROOT / _SHARED}")
    folder = directory.resolve() / name
    if folder.exists():
        raise ConfigError(f"new-method {name}: {folder} is there already; choose another name or --dir")
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
