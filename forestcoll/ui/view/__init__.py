"""Pictures of fabrics, trees and runs.

subject   what is drawn, and what is known of it
layout    where nodes are drawn: the one home of positions
alike     boxes and switches of which one stands for all
parts     what a topology is made of, in words
svg       a drawing
lanes     rows of a time line
phases    which of its bars reduce, and which broadcast
"""

from __future__ import annotations

from forestcoll.ui.view.subject import Kind, Subject

__all__ = ["Kind", "Subject"]
