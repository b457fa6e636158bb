"""The Python of the pages runs, and prints what the pages say that it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from artefacts import ROOT


def blocks(page: str) -> list[str]:
    """The page's blocks of Python, in order."""
    return re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def stated(code: str) -> list[str]:
    """The lines that a block is to print: behind `print(...)  # `, or below it behind `#> `."""
    return [line.rpartition(sign)[2] for line in code.splitlines() if (sign := _sign(line))]


def _sign(line: str) -> str:
    """What stands before a printed line; empty where there is none."""
    if line.startswith("#> "):
        return "#> "
    return "  # " if line.lstrip().startswith("print(") and "  # " in line else ""


def restated(code: str, printed: list[str]) -> str:
    """The block with what it really prints."""
    lines, news = code.splitlines(keepends=True), iter(printed)
    return "".join(
        line.rpartition(sign)[0] + sign + next(news) + "\n" if (sign := _sign(line)) else line
        for line in lines
    )


@pytest.mark.parametrize("page", ["docs/python.md", "docs/check.md", "README.md"])
def test_python_page(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """`--update-golden` writes what is printed into the page."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    path = ROOT / page
    text = new = path.read_text()
    found = [code for code in blocks(text) if "forestcoll.torch" not in code]
    assert found
    for code in found:
        exec(compile(code, page, "exec"), namespace)
        printed = capsys.readouterr().out.splitlines()
        if request.config.getoption("--update-golden"):
            assert len(printed) == len(stated(code))
            new = new.replace(code, restated(code, printed))
        else:
            assert printed == stated(code)
    if new != text:
        path.write_text(new)


def test_every_public_name_stands_on_the_page() -> None:
    import forestcoll

    page = (ROOT / "docs" / "python.md").read_text()
    functions = [name for name in forestcoll.__all__ if name.islower()]
    assert [name for name in functions if f"`{name}(" not in page] == []


def test_the_page_of_machines_names_every_format_and_setting() -> None:
    from forestcoll.topology import compose, readers

    page = (ROOT / "docs" / "machines.md").read_text()
    settings = {setting.name for setting in compose.SETTINGS}
    for form in readers.FORMATS:
        assert not form.command or f"`{form.name}`" in page, form.name
        settings |= set(readers.settings_of(form))
    for name in sorted(settings):
        assert re.search(rf"[`-]{name}\b", page), name
