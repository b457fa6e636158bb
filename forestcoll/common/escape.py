"""Text of files made fit to be shown: what would move a cursor or hide is spelled out.

Names of nodes and plans, keys, error messages: all may hold what somebody else wrote. Shown as it
is on a terminal, an escape sequence wipes out an error line, and a line feed forges one that says
"ok"; in a page or a file for other tools it makes no XML, no UTF-8, or reads backwards. All that is
shown, drawn or exported goes through `escape`.
"""

from __future__ import annotations

import re

LONGEST = 4000
"""Characters of a line that are shown at most."""
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)  # that Unicode does not call unprintable


def escape(text: str) -> str:
    """`text` as one line: control characters, line ends, turns of the reading direction, what is
    not seen and halves of surrogate pairs as Python writes them (\\x1b, \\n, \\u202e, \\ud800).

    Of a text of over `LONGEST` characters the beginning, and how many it has.
    """
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text):,} characters)"
    if text.isascii() and text.isprintable():
        return text
    return "".join([c if _is_seen(c) else c.encode("unicode_escape").decode() for c in text])


def escape_markup(text: str) -> str:
    """The same for XML and HTML, in attributes too."""
    import html

    return html.escape(escape(text))


def file_name(text: str) -> str:
    """`text` as the beginning of a file's name, in the folder that is meant, on any system."""
    return re.sub("[^A-Za-z0-9._+-]+", "-", text).lstrip(".-")[:200] or "unnamed"


def _is_seen(character: str) -> bool:
    return character.isprintable() and _INVISIBLE.match(character) is None
