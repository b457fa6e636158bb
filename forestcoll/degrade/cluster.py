"""Failures of a bundle made on a Dask cluster: a given one, or one of this machine's cores.

Workers only compute; files are written by the caller, so a cluster needs no common file system,
only this package on every worker (Dask, https://distributed.dask.org).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from forestcoll.degrade.bundle import Made, Request, make
from forestcoll.errors import UnsupportedError

if TYPE_CHECKING:
    from forestcoll.degrade.failures import Failure

CONNECT_SECONDS = 15
"""How long a scheduler is waited for."""


def installed() -> bool:
    """Whether Dask is there."""
    from importlib.util import find_spec

    return find_spec("distributed") is not None


def spread(
    request: Request, failures: Sequence[Failure], address: str | None = None
) -> Iterator[tuple[Failure, Made]]:
    """Each failure with what was made for it, as they are done.

    `address`: of a scheduler ("tcp://host:8786"); None: workers on this machine, one a core.
    Raises UnsupportedError where Dask is missing or the scheduler does not answer.
    """
    if not failures:
        return
    with _client(address) as client:
        import distributed

        # Scattered once: the topology is the same in every task.
        common = client.scatter(request, broadcast=True)
        futures = {
            client.submit(make, common, failure, pure=False): failure for failure in failures
        }
        for future in distributed.as_completed(futures, loop=client.loop):
            yield futures[future], future.result()
            future.release()


def _client(address: str | None) -> Any:
    try:
        import distributed
    except ModuleNotFoundError:
        raise UnsupportedError(
            "--dask needs Dask: install the extra 'dask' (pip install '.[dask]')"
        ) from None
    open_client = partial(distributed.Client, set_as_default=False)
    if address is None:
        import os

        cluster = distributed.LocalCluster(
            n_workers=len(os.sched_getaffinity(0)),
            threads_per_worker=1,
            dashboard_address=None,
        )
        return _LocalClient(cluster, open_client(cluster))
    try:
        return open_client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        raise UnsupportedError(
            f"no Dask scheduler answers at '{address}': start one with 'dask scheduler' and "
            f"workers with 'dask worker {address}' ({error or type(error).__name__})"
        ) from error


class _LocalClient:
    """A client whose cluster ends with it."""

    def __init__(self, cluster: Any, client: Any) -> None:
        self._cluster, self._client = cluster, client

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._cluster.close()
