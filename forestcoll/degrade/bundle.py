"""Bundles: forests and plans for every single failure, made ahead, in a folder each.

    BUNDLE/bundle.json                   the index, written last
    BUNDLE/link.box0-gpu3-fabric.9f31c2/ one failure: forest, plans, and
                        failure.json     what failed, the algbw, the SHA-256 of each file

A folder appears whole or not at all, so a run that was cut off goes on where it was: failures whose
folder is of the same problem and holds what its `failure.json` says are not made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forestcoll.compile.formats import FORMATS
from forestcoll.compile.synthesize import synthesize
from forestcoll.degrade.failures import Failure
from forestcoll.degrade.losses import Workload
from forestcoll.errors import ForestCollError, InfeasibleError, PlanError, UnsupportedError
from forestcoll.topology import dumps_topology, slug

if TYPE_CHECKING:
    from forestcoll.compile.formats import Format
    from forestcoll.targets import TargetName

FORMAT: Final = "forestcoll.bundle/1"
INDEX: Final = "bundle.json"
NOTE: Final = "failure.json"


@dataclass(frozen=True, slots=True)
class Request:
    """What is made for every failure."""

    workload: Workload
    formats: tuple[Format, ...]
    target: TargetName = "any"

    @property
    def digest(self) -> str:
        """What the files follow from: 16 hexadecimal digits."""
        workload = self.workload
        facts = [
            dumps_topology(workload.topology),
            workload.collective.value,
            str(workload.root),
            str(workload.ranks),
            workload.relays,
            *self.formats,
            self.target,
        ]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Made:
    """What a failure leaves: files by name, or the reason why there are none."""

    texts: dict[str, str]
    algbw: str | None  # exact, GB/s: what links allow
    reason: str = ""
    simulated: dict[str, Any] = field(default_factory=dict)  # per format, as `Band.summary`

    def note(self, failure: Failure, digest: str) -> dict[str, Any]:
        """The contents of `failure.json`."""
        hashes = {n: hashlib.sha256(text.encode()).hexdigest() for n, text in self.texts.items()}
        return {
            "format": FORMAT,
            "problem": digest,
            "kind": failure.kind,
            "name": failure.name,
            "without": list(failure.without),
            "scale": {change.pattern: str(change.factor) for change in failure.scale},
            "algbw": self.algbw,
            "simulated": self.simulated,
            "reason": self.reason,
            "files": hashes,
        }


def folder_of(failure: Failure) -> str:
    """The folder of a failure in a bundle: readable, and different for every failure."""
    letters = hashlib.sha256(f"{failure.kind} {failure.options}".encode()).hexdigest()[:6]
    return f"{failure.kind}.{slug(failure.name.replace('/', '-'))[:80]}.{letters}"


def make(request: Request, failure: Failure) -> Made:
    """Forest and plans for what is left after `failure`; the reason where there can be none."""
    try:
        workload = request.workload.after(failure)
        done = synthesize(
            workload.topology,
            workload.collective,
            root=workload.root,
            ranks=workload.ranks,
            relays=workload.relays,
            formats=request.formats,
            target=request.target,
        )
    except (InfeasibleError, UnsupportedError, PlanError) as error:
        return Made({}, None, str(error))
    stem = f"{done.name}.{workload.collective}"
    texts = {stem + FORMATS[form]: text for form, text in done.texts.items()}
    bands: dict[str, Any] = {form: band.summary() for form, band in done.bands.items()}
    return Made(texts, str(done.forest.plain_algbw), simulated=bands)


def read_note(folder: Path, digest: str) -> dict[str, Any] | None:
    """`failure.json` of a folder that is whole and of this problem; None where it is not there.

    Raises ForestCollError where the folder holds something else.
    """
    if not folder.exists():
        return None
    wrong = f"{folder}: is not of this bundle; name another folder, or take it away"
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        files = dict(note["files"])
        same = note["format"] == FORMAT and note["problem"] == digest
        good = all(
            hashlib.sha256((folder / Path(name).name).read_bytes()).hexdigest() == told
            for name, told in files.items()
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ForestCollError(f"{wrong} ({error})") from error
    if not same:
        raise ForestCollError(f"{wrong} (it was made for another problem or other formats)")
    if not good:
        raise ForestCollError(f"{wrong} (a file in it was changed)")
    found: dict[str, Any] = note
    return found


def make_bundle(
    request: Request,
    failures: Sequence[Failure],
    folder: Path,
    write: Callable[[Mapping[Path, str]], None],
    spread: Callable[[Request, Sequence[Failure]], Iterable[tuple[Failure, Made]]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The index of the bundle in `folder`, once all failures have theirs; what is there stays.

    `write` writes texts to new files, whole or not at all. `spread` makes several failures at once
    and yields them as they are done (`cluster.spread`); None: here, one after the other.
    `progress`: (done, all). Raises ForestCollError, also where a folder holds something else.
    """
    digest = request.digest
    notes = {f: read_note(folder / folder_of(f), digest) for f in failures}
    resumed = sum(note is not None for note in notes.values())
    todo = [failure for failure, note in notes.items() if note is None]
    done = resumed
    for failure, made in (spread or one_by_one)(request, todo):
        note = made.note(failure, digest)
        place = folder / folder_of(failure)
        texts = {place / name: text for name, text in made.texts.items()}
        write({**texts, place / NOTE: _text(note)})
        notes[failure] = note
        done += 1
        if progress is not None:
            progress(done, len(failures))
    index = {
        "format": FORMAT,
        "problem": digest,
        "topology": request.workload.topology.name,
        "collective": request.workload.collective.value,
        "formats": list(request.formats),
        "target": request.target,
        "failures": [{"folder": folder_of(f), **(note or {})} for f, note in notes.items()],
    }
    text = _text(index)
    path = folder / INDEX
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write({path: text})
    return {**index, "resumed": resumed}


def one_by_one(request: Request, failures: Iterable[Failure]) -> Iterator[tuple[Failure, Made]]:
    """Each failure in turn, in this process."""
    for failure in failures:
        yield failure, make(request, failure)


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
