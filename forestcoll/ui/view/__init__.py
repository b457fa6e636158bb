"""Pictures of fabrics, trees and runs.

subject   what is drawn, and what is known of it
layout    where nodes are drawn, and which of those that are alike: the one home of positions
svg       a drawing
timeline  rows of a simulated run, which of its bars reduce or broadcast; what overlaps, by tiles
data      the page and its data
"""

from __future__ import annotations

from forestcoll.ui.view.subject import Kind, Subject

__all__ = ["Kind", "Subject"]
