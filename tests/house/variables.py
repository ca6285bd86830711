"""The table of environment variables in docs/security.md, made from the settings.

python tests/house/variables.py        writes it between the markers
"""

from __future__ import annotations

from slime.config.aliases import READ_BY_LIBRARIES
from slime.config.leaves import leaves
from sources import ROOT

BEGIN, END = "<!-- variables: written by tests/house/variables.py -->", "<!-- /variables -->"


def variables() -> str:
    """The table, as Markdown."""
    lines = ["| variable | for |", "| --- | --- |"]
    for leaf in leaves().values():
        for name in leaf.published_env:
            lines.append(f"| `{name}` | {leaf.help}{' (secret)' if leaf.is_secret else ''} |")
    lines += [f"| `{name}` | {meaning} |" for name, meaning in READ_BY_LIBRARIES.items()]
    return "\n".join(lines)


def with_variables(page: str) -> str:
    """The page with the table of today between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{variables()}\n{END}{after}"


if __name__ == "__main__":
    page = ROOT / "docs/security.md"
    page.write_text(with_variables(page.read_text(encoding="utf-8")), encoding="utf-8")
