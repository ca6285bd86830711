"""`python die_with_parent.py PARENT_PID COMMAND…`: become COMMAND, and die when the parent does.

An engine that outlives its owner by a crash would keep the port and the memory. Linux offers to kill a process with its
parent (`prctl`), but only the process itself can ask for it, and SGLang does not: so this asks, then becomes it. Run by
path and with the standard library alone, it costs some 20 ms. Elsewhere than on Linux it only becomes the command.

It leads a process group of its own: Ctrl-C in a terminal is for the owner, who ends it in its own time. It stays in the
owner's session, because Linux may share the cores out by session (see `slime.cluster.learner`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def become(parent_pid: int, command: list[str]) -> None:
    """Replace this process by `command`, tied to `parent_pid`."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent_pid:  # it died before the request stood
            sys.exit(1)
    os.setpgid(0, 0)
    os.execvp(command[0], command)


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
