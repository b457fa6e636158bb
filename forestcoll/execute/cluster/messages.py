"""Messages between processes: JSON behind its length, and proofs that both ends know one secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import sys
import time
from typing import Any

from forestcoll.common.errors import ExecutionError

LENGTH = struct.Struct("<I")
LONGEST = 1 << 26
"""Bytes of a message."""
HELLO = f"forestcoll 1 {sys.byteorder}"
"""What both ends must agree on before anything else."""
PROOF = 256
"""Bytes of the longest message of somebody who has not proven himself."""

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """The bytes of a message; ExecutionError: it is too long."""
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) > LONGEST:
        raise ExecutionError(f"a message of {len(text)} bytes between processes: at most {LONGEST}")
    return LENGTH.pack(len(text)) + text


class Stream:
    """A connected socket, of which whole messages are read."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()

    def send(self, message: Message) -> None:
        self.socket.sendall(encode(message))

    def fill(self) -> bool:
        """Reads what is there; False: the other end has closed."""
        try:
            got = self.socket.recv(1 << 20)
        except BlockingIOError:
            return True
        self.buffer += got
        return bool(got)

    def take(self, longest: int = LONGEST) -> Message | None:
        """The next whole message that has been read. ValueError: it is none."""
        if len(self.buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self.buffer)
        if length > longest:
            raise ValueError(f"a message of {length} bytes")
        end = LENGTH.size + length
        if len(self.buffer) < end:
            return None
        message = json.loads(bytes(self.buffer[LENGTH.size : end]))
        del self.buffer[:end]
        if not isinstance(message, dict):
            raise ValueError("a message that is no object")
        return message

    def receive(self, until: float, longest: int = LONGEST) -> Message:
        """The next message; OSError or ValueError: none came by `until` (time.monotonic)."""
        while (message := self.take(longest)) is None:
            self.socket.settimeout(max(0.001, until - time.monotonic()))
            if not self.fill():
                raise ConnectionError("the connection was closed")
        self.socket.settimeout(None)
        return message

    def close(self) -> None:
        self.socket.close()


def _proof(secret: str, *what: str) -> str:
    return hmac.new(secret.encode(), "|".join(what).encode(), hashlib.sha256).hexdigest()


def _check_version(hello: Message) -> None:
    said = hello.get("hello")
    if said != HELLO:
        raise PermissionError(f"it is {str(said)[:60]}, not {HELLO}")


def greet(stream: Stream, secret: str, process: int, purpose: str, until: float) -> None:
    """Proves to the listener that this is `process`, and that the listener knows the secret.

    PermissionError: it does not, or speaks another version. OSError, ValueError: no answer.
    """
    own = secrets.token_hex(16)
    stream.send({"hello": HELLO, "nonce": own})
    theirs = stream.receive(until, PROOF)
    _check_version(theirs)
    nonce = str(theirs.get("nonce"))
    stream.send({"process": process, "proof": _proof(secret, purpose, nonce, str(process))})
    answer = str(stream.receive(until, PROOF).get("proof"))
    if not hmac.compare_digest(answer, _proof(secret, purpose, own, "listener")):
        raise PermissionError("it does not know this job's secret")


def accept(stream: Stream, secret: str, purpose: str, until: float) -> int:
    """The other side of `greet`: the number of the process that has called.

    PermissionError: it does not know the secret, or speaks another version.
    """
    hello = stream.receive(until, PROOF)
    own = secrets.token_hex(16)
    stream.send({"hello": HELLO, "nonce": own})
    _check_version(hello)
    said = stream.receive(until, PROOF)
    process = said.get("process")
    proof = _proof(secret, purpose, own, str(process))
    if not isinstance(process, int) or not hmac.compare_digest(str(said.get("proof")), proof):
        stream.send({"proof": ""})  # which is not that of this job either
        raise PermissionError("it does not know this job's secret")
    stream.send({"proof": _proof(secret, purpose, str(hello.get("nonce")), "listener")})
    return process
