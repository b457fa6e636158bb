"""Pages as pictures: docs/view-*.webp. Needs playwright, and Chromium or its place in
FORESTCOLL_CHROMIUM_PATH.
"""

from __future__ import annotations

import base64
import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from forestcoll.ui import cli

ROOT = Path(__file__).parents[2]
SCHEDULES = ROOT / "schedules"
TILES = ["--size", "1G", "--tiles", "8"]
LARGE = ["fat-tree", "--set", "leaves=8", "--set", "hosts=8"]
PICTURES = {
    "view-dgx-a100": ([SCHEDULES / "dgx-a100-2" / "allreduce.mscclpp.json"], "]", "light"),
    "view-mi250": ([SCHEDULES / "mi250-1" / "allreduce.msccl.xml"], "c", "light"),
    "view-tiles": ([SCHEDULES / "mi250-1" / "allreduce.mscclpp.json", *TILES], "", "light"),
    "view-fat-tree": (LARGE, "", "dark"),
}
"""Name -> FILE of `forestcoll view`, keys that are pressed, light or dark."""


def run(*arguments: object) -> None:
    """A command of the program; ends the script where it fails."""
    if cli.main([str(word) for word in arguments]) != 0:
        sys.exit(1)


def main() -> None:
    """Take all pictures."""
    chromium = os.environ.get("FORESTCOLL_CHROMIUM_PATH") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as play:
        folder = Path(name)
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture, (words, keys, scheme) in PICTURES.items():
            html = folder / f"{picture}.html"
            run("view", "--quiet", *words, "-o", html)
            page = browser.new_page(
                viewport={"width": 1180, "height": 760},
                color_scheme=scheme,  # type: ignore[arg-type]
            )
            page.goto(html.as_uri())
            page.wait_for_selector("html[data-ready]")
            for key in keys:
                page.keyboard.press(key)
            page.wait_for_timeout(300)
            session = page.context.new_cdp_session(page)
            taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": 82})
            out = ROOT / "docs" / f"{picture}.webp"
            out.write_bytes(base64.b64decode(taken["data"]))
            print(f"{out.relative_to(ROOT)}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
