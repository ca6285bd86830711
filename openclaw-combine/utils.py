"""The published import path of the session viewer: `inspect_sessions("./rl_buffer")`."""

from slime.tools.inspection import inspect_sessions

__all__ = ["inspect_sessions"]
