"""The published name of what shows the sessions of a store: `inspect_sessions("./rl_buffer")`."""

from slime.tools.inspection import inspect_sessions

__all__ = ["inspect_sessions"]
