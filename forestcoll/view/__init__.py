"""Pictures of fabrics, trees and runs: positions of nodes, a drawing, a page to look around in."""

from __future__ import annotations

from forestcoll.view.subject import Kind, Subject

__all__ = ["Kind", "Subject"]
