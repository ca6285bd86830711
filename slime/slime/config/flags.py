"""A configuration as the flags that give it: how one of our programs tells another what it was told."""

from __future__ import annotations

from collections.abc import Collection

from slime.config.leaves import leaves
from slime.config.sections import Config


def as_flags(config: Config, sections: Collection[str]) -> list[str]:
    """Flags that say every setting of some sections, so that no variable or file of the other program's counts.

    Secrets are left out: a command line can be read by everybody on the machine.

    >>> as_flags(Config(server=ServerConfig(port=8001)), ["server"])
    ['--host=127.0.0.1', '--port=8001', …]
    """
    flags: list[str] = []
    for leaf in leaves().values():
        if leaf.section not in sections or leaf.is_secret:
            continue
        value = getattr(getattr(config, leaf.section), leaf.name)
        if leaf.is_switch:
            flags.append(leaf.flag if value else leaf.flag.replace("--", "--no-", 1))
        else:
            flags.append(f"{leaf.flag}={value}")
    return flags
