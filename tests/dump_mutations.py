"""Damaged copies of dumps: cut off, fields gone, wrong types, doubles, huge numbers, bombs, odd
encodings. Every mutation is a function of bytes and a random generator, named for messages.

`slips` are of another kind: still well-formed, and wrong in one place.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Mutation = Callable[[bytes, random.Random], bytes]

BOMB = (
    b'<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">'
    b'<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;">]>\n'
)
NUMBERS = (b"0", b"-1", b"1e999", b"99999999999999999999", b"NaN", b"0x7f", b"1/0", b"999999", b"")
WORDS = (b"null", b"[]", b"{}", b"true", b"\xe4\xf6", b"\x00", b"&d;", b"<", b'"', b"GPU0", b"S-0")


def cut_off(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def cut_front(data: bytes, rng: random.Random) -> bytes:
    return data[rng.randrange(len(data)) :]


def drop_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    for _ in range(rng.randint(1, 5)):
        del lines[rng.randrange(len(lines)) : rng.randrange(len(lines)) + 1]
        lines = lines or [b""]
    return b"\n".join(lines)


def double_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    upto = min(len(lines), at + rng.randint(1, 40))
    return b"\n".join(lines[:upto] + lines[at:upto] * rng.choice((1, 2, 50)) + lines[upto:])


def shuffle_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    part = lines[at : at + 30]
    rng.shuffle(part)
    return b"\n".join(lines[:at] + part + lines[at + 30 :])


def change_numbers(data: bytes, rng: random.Random) -> bytes:
    return _replace_some(rb"[0-9]+(?:\.[0-9]+)?", NUMBERS, data, rng)


def change_words(data: bytes, rng: random.Random) -> bytes:
    return _replace_some(rb"[A-Za-z_][A-Za-z0-9_]{2,}", WORDS, data, rng)


def drop_fields(data: bytes, rng: random.Random) -> bytes:
    pattern = rb'\s[a-z_]+="[^"]*"|"[a-z_]+"\s*:\s*[^,}\]]+,?|,[^,\n]*|\t\S+'
    return _replace_some(pattern, (b"",), data, rng)


def huge_number(data: bytes, rng: random.Random) -> bytes:
    return _replace_some(rb"[0-9]+", (b"9" * rng.choice((30, 400, 5000)),), data, rng)


def add_bomb(data: bytes, rng: random.Random) -> bytes:
    head = re.match(rb"\s*<\?xml[^>]*\?>", data)
    at = head.end() if head else 0
    body = re.sub(rb"<!DOCTYPE[^>]*>", b"", data[at:])
    return data[:at] + BOMB + _replace_some(rb'"[^"<]*"', (b'"&d;"',), body, rng)


def nest_deep(data: bytes, rng: random.Random) -> bytes:
    opening = rng.choice((b"<pci busid='0:1:0.0'>", b"[", b'{"a":', b"- "))
    at = rng.randrange(len(data) + 1)
    return data[:at] + opening * rng.choice((70, 5000, 60_000)) + data[at:]


def repeat_all(data: bytes, rng: random.Random) -> bytes:
    return data * rng.choice((2, 5, max(1, 3_000_000 // max(1, len(data)))))


def long_line(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice((b"a", b" ", b"1", b"GPU1", b",")) * 400_000 + data[at:]


def odd_encoding(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    codec = rng.choice(("utf-16", "utf-32", "utf-8-sig", "cp037", "latin-1", "utf-7"))
    return text.encode(codec, "replace")


def random_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"x")
    for _ in range(rng.randint(1, 30)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _replace_some(
    pattern: bytes, choices: tuple[bytes, ...], data: bytes, rng: random.Random
) -> bytes:
    """Up to five matches of `pattern`, or a tenth of all, replaced."""
    found = list(re.finditer(pattern, data))
    if not found:
        return data
    often = rng.choice((1, 1, 2, 5, max(1, len(found) // 10)))
    parts, end = [], 0
    for match in sorted(rng.sample(found, min(often, len(found))), key=lambda m: m.start()):
        parts += [data[end : match.start()], rng.choice(choices)]
        end = match.end()
    return b"".join([*parts, data[end:]])


MUTATIONS: tuple[Mutation, ...] = (
    cut_off,
    cut_front,
    drop_lines,
    double_lines,
    shuffle_lines,
    change_numbers,
    change_words,
    drop_fields,
    huge_number,
    add_bomb,
    nest_deep,
    repeat_all,
    long_line,
    odd_encoding,
    random_bytes,
)


def mutate(data: bytes, seed: str) -> tuple[str, bytes]:
    """(names of the mutations, the damaged copy): one or two of them, by `seed` alone."""
    rng = random.Random(seed)
    chosen = rng.choices(MUTATIONS, k=rng.choice((1, 1, 2)))
    for mutation in chosen:
        data = mutation(data, rng) if data else data
    return "+".join(mutation.__name__ for mutation in chosen), data


FIGURE = re.compile(
    r"(?<=\bNV)\d+|(?<=\[)\d+(?=[:\]])|(?<=\d:)\d+(?=\])"
    r"|(?<![\w.:])(?<![A-Za-z]-)\d+(?:\.\d+)?(?=x[A-Z]{3}|[GM]\b|(?![\w:.]))"
)
"""A number that stands for itself: `count="4"`, NV4, 4xNDR, 400G, xpu[0:2], and not gpu4, 0x1c, a
bus id or part of a name."""


@dataclass(frozen=True)
class Slip:
    """A copy with one figure changed, or one line repeated or gone; `before` and `after` are what
    stands around the figure in its line."""

    what: str  # "figure", "repeat", "drop"
    line: int
    before: str
    old: str
    new: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.what} line {self.line}: {self.before}[{self.old} -> {self.new}]{self.after}"


def slips(text: str, seed: str, count: int, figure: re.Pattern[str] = FIGURE) -> Iterator[Slip]:
    """`count` such copies, by `seed` alone: a third change lines and the others a figure."""
    rng = random.Random(seed)
    lines = text.split("\n")
    found = [(i, match) for i, line in enumerate(lines) for match in figure.finditer(line)]
    for number in range(count):
        if number % 3 == 0 or not found:
            at = rng.randrange(len(lines))
            what = rng.choice(("repeat", "drop"))
            changed = lines[:at] + lines[at : at + 1] * (2 if what == "repeat" else 0)
            yield Slip(what, at + 1, "", lines[at].strip()[:120], "", "",
                       "\n".join(changed + lines[at + 1 :]))  # fmt: skip
            continue
        at, match = rng.choice(found)
        old, line = match[0], lines[at]
        new = rng.choice([each for each in _other_figures(old, found, rng) if each != old])
        before, after = line[: match.start()], line[match.end() :]
        made = [*lines[:at], before + new + after, *lines[at + 1 :]]
        yield Slip("figure", at + 1, before, old, new, after, "\n".join(made))


def _other_figures(
    old: str, found: list[tuple[int, re.Match[str]]], rng: random.Random
) -> list[str]:
    """Twice and half of it, one more or less, a unit off, a negative, and another of the file."""
    if "." in old:
        value = float(old)
        made = [f"{value * factor:.6g}" for factor in (2, 0.5, 10, 0.001)]
    else:
        number = int(old)
        made = [
            str(n) for n in (number * 2, number // 2, number + 1, abs(number - 1), number * 1000)
        ]
    return [*made, "0", f"-{old}", rng.choice(found)[1][0]]
