"""Which of a job's processes this one is: what torchrun, mpirun, srun and others say of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from forestcoll.common import arguments
from forestcoll.common.errors import ArgumentError

PORT, SECRET, ADDRESS = "FORESTCOLL_PORT", "FORESTCOLL_SECRET", "FORESTCOLL_ADDRESS"
"""Variables: the port at which process 0 awaits the others, what they prove themselves by, and the
address by which the others reach this process."""
LOCAL = "127.0.0.1"
FIRST_PORT, PORTS = 20_000, 10_000
"""Ports that are chosen by a job's number, where nobody names one."""


class Launcher(NamedTuple):
    """Variables by which a launcher tells a process its number, how many there are, and the job.

    `here`: how many processes are on this machine.
    """

    name: str
    rank: str
    size: str
    job: str
    here: str = ""


LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", here="LOCAL_WORLD_SIZE"),
    Launcher(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMIX_NAMESPACE",
        here="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher(
        "mpiexec (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "PMI_ID", here="MPI_LOCALNRANKS"
    ),
    Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"),
)
"""In the order in which they are asked; the first whose variables are all there is believed.

SLURM_NTASKS is of the whole job: a batch script has it as well, and there it stands alone.
"""


class Place(NamedTuple):
    """A process among those of its job, numbered from 0, and where process 0 awaits the others."""

    process: int
    processes: int
    address: str
    port: int
    secret: str


def find(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place that a launcher gave this process; None: it stands alone.

    Raises ArgumentError where its variables contradict each other or leave out where process 0 is.
    """
    here = (one for one in LAUNCHERS if one.rank in environment and one.size in environment)
    launcher = next(here, None)
    if launcher is None:
        return None
    process = _number(environment, launcher.rank, 0)
    processes = _number(environment, launcher.size, 1)
    if process >= processes:
        raise ArgumentError(
            f"{launcher.rank}={process} of {launcher.size}={processes}: processes are "
            "numbered from 0"
        )
    if processes == 1:
        return None
    job = environment.get(launcher.job, "")
    address = environment.get("MASTER_ADDR", "")
    if not address and launcher.name == "srun":
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        address = first_host(nodes)
    if not address and launcher.here in environment:
        address = LOCAL if _number(environment, launcher.here, 1) == processes else ""
    if not address:
        raise ArgumentError(
            f"{launcher.name} started {processes} processes and does not say where process 0 is: "
            "set MASTER_ADDR to its machine's name in all of them"
        )
    if PORT in environment:
        port = _number(environment, PORT, 1)
    elif "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT", 1) + 1  # torchrun itself listens at that one
    else:
        port = FIRST_PORT + sum(job.encode()) * 7919 % PORTS
    if port > 65535:
        raise ArgumentError(f"port {port} is none: set {PORT} to one from 1 to 65535")
    secret = environment.get(SECRET) or f"{launcher.name} {job}"
    return Place(process, processes, address, port, secret)


def _number(environment: Mapping[str, str], name: str, least: int) -> int:
    text = environment[name]
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
        raise ArgumentError(
            f"{name}={arguments.quote(text)}: must be a whole number from {least} on"
        )
    return int(text)


def first_host(nodes: str) -> str:
    """The first of a list as SLURM writes it: `gpu[008-015,20],login` is gpu008."""
    parts = re.match(r"([^\[\],]*)(?:\[([^\],-]+)[^\]]*\])?([^\[\],]*)", nodes)
    return "".join(part or "" for part in parts.groups()) if parts else ""
