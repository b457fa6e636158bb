"""A process that has imported what ranks need (PyTorch takes seconds), from which they are forked.

As `multiprocessing`'s fork server, but nothing of it has a name: it hears of a new rank over a pair
of sockets, and a rank of its work over another. So nothing is left in a file system, however the
lab ends.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NoReturn

_FORK, _END = b"f", b"e"
_SERVE = "import sys; from forestcoll.execute.lab.fork_server import serve; serve(*sys.argv[1:])"


class ForkServer:
    """The process, started with the first `fork`; it imports the `modules` before that."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, work: Callable[..., None], *arguments: object) -> Connection:
        """Call `work(*arguments, pipe)` in a new process; returns the other end of the pipe.

        Function and arguments are pickled. The pipe ends with the process.
        """
        if self._line is None:
            self._line, theirs = socket.socketpair()
            words = [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno()), *self._modules]
            with theirs:
                self._process = subprocess.Popen(
                    words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
                )
        ours, child = Pipe()
        with child:
            socket.send_fds(self._line, [_FORK], [child.fileno()])
        ours.send((work, arguments))
        return ours

    def end(self) -> None:
        """Kill what was forked, and wait until it is gone."""
        if self._line is None:
            return
        try:
            self._line.sendall(_END)
            ended = self._line.recv(1) == _END
        except OSError:
            ended = False
        if not ended:  # a signal to the whole group has ended it too: its ranks end by their pipes
            self.close()

    def close(self) -> None:
        """End the process too; the next `fork` starts another."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.wait()
        self._line = self._process = None


def serve(number: str, *modules: str) -> None:
    """Be the process: fork for who is at the other end of socket `number`, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the lab itself
    for module in modules:
        importlib.import_module(module)
    line = socket.socket(fileno=int(number))
    children: list[int] = []
    while True:
        word, files, _, _ = socket.recv_fds(line, 1, 1)
        if word == _FORK:
            child = os.fork()
            if child == 0:
                line.close()
                _work(Connection(files[0]))
            os.close(files[0])
            children.append(child)
            continue
        for child in children:  # all, before any is waited for: who is left would see others go
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        children.clear()
        if not word:
            return
        line.sendall(_END)


def _work(pipe: Connection) -> NoReturn:
    """The life of a forked process: it ends at once, without what its parent would clean up."""
    try:
        work, arguments = pipe.recv()
        work(*arguments, pipe)
    except (SystemExit, EOFError, OSError):  # said already, or nobody is there to hear it
        pass
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")
