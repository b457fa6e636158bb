"""Options of the suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the files in schedules/ anew instead of comparing with them."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the files in schedules/ anew, whatever they hold",
    )
