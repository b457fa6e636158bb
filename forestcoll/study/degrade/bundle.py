"""Bundles: forests and plans for every single failure, made ahead, in a folder each.

    BUNDLE/bundle.json                   the index, written last
    BUNDLE/link.box0-gpu3-fabric.9f31c2/ one failure: forest, plans, and
                        failure.json     what failed, the algbw, the SHA-256 of each file

A run that was cut off goes on where it was: failures whose folder is of the same problem and holds
what its `failure.json`, written last, says are not made again. Both records are sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forestcoll.common.errors import ForestCollError, InfeasibleError, PlanError, UnsupportedError
from forestcoll.common.text_file import digest as file_digest
from forestcoll.common.text_file import dump_record, seal
from forestcoll.compile.formats import FORMATS
from forestcoll.compile.synthesize import synthesize
from forestcoll.schedule import forest_file
from forestcoll.study.degrade.failures import Failure
from forestcoll.study.degrade.losses import Workload, read_sealed
from forestcoll.topology import slug

if TYPE_CHECKING:
    from forestcoll.compile.formats import Format
    from forestcoll.program.targets import TargetName

FORMAT: Final = "forestcoll.bundle/1"
INDEX: Final = "bundle.json"
NOTE: Final = "failure.json"


class Request(NamedTuple):
    """What is made for every failure."""

    workload: Workload
    formats: tuple[Format, ...]
    target: TargetName = "any"

    @property
    def digest(self) -> str:
        """What the files follow from: 16 hexadecimal digits."""
        facts = [*self.workload.facts(), *self.formats, self.target]
        return file_digest("\n".join(facts))[:16]


@dataclass(frozen=True)
class Made:
    """What a failure leaves: files by name, or the reason why there are none."""

    texts: dict[str, str]
    algbw: str | None  # exact, GB/s: what links allow
    reason: str = ""
    simulated: dict[str, Any] = field(default_factory=dict)  # per format, as `Band.summary`

    def note(self, failure: Failure, digest: str) -> dict[str, Any]:
        """The contents of `failure.json`."""
        hashes = {name: file_digest(text) for name, text in self.texts.items()}
        return seal(
            {
                "format": FORMAT,
                "problem": digest,
                **_identity(failure),
                "algbw": self.algbw,
                "simulated": self.simulated,
                "reason": self.reason,
                "files": hashes,
            }
        )


def _identity(failure: Failure) -> dict[str, Any]:
    return {
        "kind": failure.kind,
        "name": failure.name,
        "without": list(failure.without),
        "scale": {change.pattern: str(change.factor) for change in failure.scale},
    }


def folder_of(failure: Failure) -> str:
    """The folder of a failure in a bundle: readable, and different for every failure."""
    letters = file_digest(f"{failure.kind} {failure.options}")[:6]
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


def read_note(folder: Path, digest: str, failure: Failure | None = None) -> dict[str, Any] | None:
    """`failure.json` of a folder that is whole and of this problem (and failure).

    None where there is nothing yet but what a run that was killed has left hidden. Raises
    ForestCollError where the folder holds something else.
    """
    wrong = f"{folder}: is not of this bundle; name another folder, or take it away"
    try:
        if not folder.exists() or all(path.name.startswith(".") for path in folder.iterdir()):
            return None
        note = read_sealed(folder / NOTE, FORMAT)
        same = note["problem"] == digest and (
            failure is None or note == {**note, **_identity(failure)}
        )
        good = all(
            file_digest((folder / Path(name).name).read_bytes()) == told
            for name, told in note["files"].items()
        )
    except (OSError, TypeError, KeyError, AttributeError, ForestCollError) as error:
        raise ForestCollError(f"{wrong} ({error})") from None
    if not same:
        raise ForestCollError(f"{wrong} (it was made for another problem or other formats)")
    if not good:
        raise ForestCollError(f"{wrong} (a file in it was changed)")
    return note


def check_bundle(folder: Path) -> list[str]:
    """What is so of the bundle in `folder`, besides its forests and plans; one line a fact.

    Index and records are as they were written and say the same, files are theirs, and `algbw` is
    that of the forest, where there is one. Raises ForestCollError.
    """
    index = read_sealed(folder / INDEX, FORMAT)
    try:
        for entry in index["failures"]:
            here = folder / Path(entry["folder"]).name
            note = read_note(here, index["problem"]) or {}
            if entry != {"folder": here.name, **note}:
                raise ForestCollError(f"{here}: {NOTE} is not what {INDEX} says of it")
            for name in entry["files"]:
                if not name.endswith(FORMATS["forest"]):
                    continue
                algbw = str(forest_file.load(here / Path(name).name).plain_algbw)
                if algbw != entry["algbw"]:
                    raise ForestCollError(
                        f"{here / name}: its algbw is {algbw}; {NOTE} says {entry['algbw']}"
                    )
        with_files = sum(bool(entry["files"]) for entry in index["failures"])
        title = f"{index['collective']} on {index['topology']}"
        return [f"{title}: {len(index['failures'])} failures, files for {with_files} of them"]
    except (TypeError, KeyError, AttributeError) as error:
        raise ForestCollError(f"{folder / INDEX}: is no index of a bundle ({error})") from None


def make_bundle(
    request: Request,
    failures: Sequence[Failure],
    folder: Path,
    write: Callable[[Mapping[Path, str]], None],
    spread: Callable[[Request, Sequence[Failure]], Iterable[tuple[Failure, Made]]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The index of the bundle in `folder`, once all failures have theirs; what is there stays.

    Failures of earlier calls, for other kinds, stay in it too.

    `write` writes texts to new files, whole or not at all. `spread` makes several failures at once
    and yields them as they are done (`cluster.spread`); None: here, one after the other.
    `progress`: (done, all). Raises ForestCollError, also where a folder holds something else.
    """
    digest, path = request.digest, folder / INDEX
    if path.exists() and read_sealed(path, FORMAT)["problem"] != digest:
        raise ForestCollError(
            f"{path}: was made for another problem or other formats; name another folder"
        )
    asked = {folder_of(failure): failure for failure in failures}
    there = sorted(path.parent.name for path in folder.glob(f"*/{NOTE}"))
    notes = {
        name: read_note(folder / name, digest, asked.get(name))
        for name in dict.fromkeys([*asked, *there])
    }
    resumed = sum(note is not None for note in notes.values())
    todo = [asked[name] for name, note in notes.items() if note is None]
    done = resumed
    each = spread(request, todo) if spread else ((f, make(request, f)) for f in todo)
    for failure, result in each:
        note = result.note(failure, digest)
        place = folder / folder_of(failure)
        texts = {place / name: text for name, text in result.texts.items()}
        write({**texts, place / NOTE: dump_record(note)})
        notes[place.name] = note
        done += 1
        if progress is not None:
            progress(done, len(notes))
    index = seal(
        {
            "format": FORMAT,
            "problem": digest,
            "topology": request.workload.topology.name,
            "collective": request.workload.collective.value,
            "formats": list(request.formats),
            "target": request.target,
            "failures": [{"folder": name, **(note or {})} for name, note in notes.items()],
        }
    )
    text = dump_record(index)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.unlink(missing_ok=True)  # of this bundle, for other kinds of failures
        write({path: text})
    return {**index, "resumed": resumed}
