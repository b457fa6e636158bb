"""One command on several machines, by ssh: a process on each, or as many as are asked for."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import IO, NamedTuple

from forestcoll.common import arguments
from forestcoll.common.errors import ArgumentError, ExecutionError
from forestcoll.execute.cluster.launchers import FIRST_PORT, PORT, PORTS, SECRET

SSH = "FORESTCOLL_SSH"
"""Variable: what runs a command line on a machine, given its name and the line."""
REMOTE = "FORESTCOLL_COMMAND"
"""Variable: what forestcoll is called there."""
FROM_STDIN = "-"
"""In place of the secret: it comes by standard input, whose end ends the process."""
PATIENCE = 10.0
"""Seconds that processes have to end by themselves once one has failed."""


class Host(NamedTuple):
    """A machine as ssh calls it, and how many processes it gets."""

    name: str
    processes: int = 1


def parse(text: str) -> list[Host]:
    """Hosts of `a,b:4,user@c`. ArgumentError: something is no host."""
    hosts = []
    for word in text.split(","):
        name, _, count = word.strip().partition(":")
        if not name or name.startswith("-") or (count and not count.isdigit()) or count == "0":
            raise ArgumentError(
                f"--hosts: {arguments.quote(word)} is no host: HOST, USER@HOST or HOST:PROCESSES"
            )
        hosts.append(Host(name, int(count or 1)))
    return hosts


def run(hosts: Sequence[Host], words: Sequence[str]) -> int:
    """Runs `forestcoll` with these arguments on all hosts; the exit code of the first that failed.

    What process 0 prints is printed; what others say goes to stderr, with their hosts' names. They
    find the same folder and the same command as this process has ($FORESTCOLL_COMMAND: another).
    """
    secret = secrets.token_hex(16)
    places = [host for host in hosts for _ in range(host.processes)]
    port = os.environ.get(PORT) or str(FIRST_PORT + secrets.randbelow(PORTS))
    command = os.environ.get(REMOTE) or f"{shlex.quote(sys.executable)} -m forestcoll"
    children: list[subprocess.Popen[str]] = []
    threads = []
    try:
        for number, host in enumerate(places):
            told = {
                "RANK": str(number),
                "WORLD_SIZE": str(len(places)),
                "MASTER_ADDR": hosts[0].name.rpartition("@")[2],
                PORT: port,
                SECRET: FROM_STDIN,
            }
            env = shlex.join(f"{name}={value}" for name, value in told.items())
            line = f"cd {shlex.quote(os.getcwd())} && exec env {env} {command} {shlex.join(words)}"
            children.append(_start(host, line, secret, first=number == 0))
            threads.append(Thread(target=_pass_on, args=(children[-1].stderr, host.name)))
            threads[-1].start()
        return _wait(children)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()
        for thread in threads:
            thread.join()


def _start(host: Host, line: str, secret: str, *, first: bool) -> subprocess.Popen[str]:
    words = shlex.split(os.environ.get(SSH) or "ssh -o BatchMode=yes")
    try:
        child = subprocess.Popen(
            [*words, host.name, line],
            stdin=subprocess.PIPE,
            stdout=None if first else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this process, which ends them
        )
    except OSError as error:
        raise ExecutionError(f"{words[0]} cannot be run: {error.strerror}") from error
    assert child.stdin is not None
    with suppress(OSError):  # it has ended, and says why
        child.stdin.write(f"{secret}\n")
        child.stdin.flush()
    return child


def _pass_on(stream: IO[str] | None, name: str) -> None:
    assert stream is not None
    for line in stream:
        sys.stderr.write(f"{name}: {line}")


def _wait(children: Sequence[subprocess.Popen[str]]) -> int:
    """Until all have ended; those that do not, once one has failed, are ended."""
    until = float("inf")
    while any(child.poll() is None for child in children) and time.monotonic() < until:
        if any(child.returncode for child in children):
            until = min(until, time.monotonic() + PATIENCE)
        time.sleep(0.05)
    return next((child.returncode for child in children if child.returncode), 0)


def secret_of(text: str) -> str:
    """The secret that a variable holds, or that comes by standard input (`FROM_STDIN`).

    From then on the end of standard input, when whoever started this process is gone, ends it.
    """
    if text != FROM_STDIN:
        return text
    line = sys.stdin.readline().strip()
    Thread(target=_end_with_input, daemon=True).start()
    return line


def _end_with_input() -> None:
    while os.read(0, 4096):  # not by sys.stdin, which Python closes while this thread reads
        pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)  # whoever started this process had it ignore that
