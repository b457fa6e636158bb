"""UCX as the wire between processes: compiled on first use, against the headers that are there.

The library is loaded at run time: `$FORESTCOLL_UCX` (a libucp.so), the system's, or that of the
wheels libucx-cu12 and libucx-cu13. What it goes over UCX decides, by its own variables
(UCX_TLS, UCX_NET_DEVICES).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import shutil
from pathlib import Path

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute.builds import build, cache_folder

LIBRARY = "FORESTCOLL_UCX"
HERE = Path(__file__).parent
NATIVE = HERE.parent / "native"
SOURCES = (HERE / "ucx.cpp", HERE / "wire.hpp", NATIVE / "interpreter.hpp", NATIVE / "tables.hpp")
HEADER = Path("ucp/api/ucp.h")


def wheel() -> Path | None:
    """The folder of a wheel's UCX."""
    spec = importlib.util.find_spec("libucx")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]) if places else None


def find_library() -> str | None:
    """libucp as `dlopen` takes it."""
    found = os.environ.get(LIBRARY) or ctypes.util.find_library("ucp")
    if found is None and (there := wheel()) is not None:
        found = next(map(str, sorted((there / "lib").glob("libucp.so*"))), None)
    return found


def find_headers() -> Path | None:
    """The folder that has them."""
    folders = [Path(root) / "include" for root in ("/usr", "/usr/local", "/opt/ucx")]
    library = os.environ.get(LIBRARY)
    if library:
        folders.insert(0, Path(library).resolve().parents[1] / "include")
    if (there := wheel()) is not None:
        folders.append(there / "include")
    return next((folder for folder in folders if (folder / HEADER).is_file()), None)


def version(library: str) -> str:
    """`1.13.1`. UnsupportedError: it cannot be loaded."""
    try:
        loaded = ctypes.CDLL(library)
    except OSError as error:
        raise UnsupportedError(f"UCX cannot be loaded: {error}") from error
    loaded.ucp_get_version_string.restype = ctypes.c_char_p
    return str(loaded.ucp_get_version_string().decode())


def libraries() -> list[str]:
    """What `_engine.Way` loads, in this order; UnsupportedError says what is missing.

    UCX reads how to send over TCP from the environment, where this sets what the user has not.
    """
    library = find_library()
    if library is None:
        raise UnsupportedError(
            "UCX is not here: install it (Debian: libucx-dev; pip install libucx-cu12), or name "
            f"its libucp.so in {LIBRARY}; --wire sockets needs nothing"
        )
    there = version(library)
    headers, compiler = find_headers(), shutil.which(os.environ.get("CXX", "c++"))
    if headers is None or compiler is None:
        lacks = "a C++ compiler (c++)" if headers else f"the header {HEADER} (Debian: libucx-dev)"
        raise UnsupportedError(
            f"the wire over UCX is compiled on first use, and {lacks} is not found"
        )
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", f"-I{headers}", f"-I{NATIVE}", f"-I{HERE}"]
    text = (headers / HEADER).with_name("ucp_version.h").read_text(encoding="utf-8")
    built = build(
        "the wire over UCX",
        f"{compiler} {there} {text}",
        lambda target: [str(compiler), *flags, "-o", str(target), str(SOURCES[0])],
        SOURCES,
        cache_folder(),
    )
    for end in ("UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE"):
        os.environ.setdefault(end, "256k")  # a slice at a system call, not 8 KiB
    if os.environ.get("UCX_TLS") == "tcp":  # nobody has to ask whether a message may come
        os.environ.setdefault("UCX_RNDV_THRESH", "inf")
    return [library, str(built)]
