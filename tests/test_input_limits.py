"""Limits on input: each knows its name, which every refusal states."""

from __future__ import annotations

import pickle

from forestcoll import input_limits
from forestcoll.input_limits import Limit


def test_every_limit_is_called_as_the_module_calls_it() -> None:
    limits = {name: v for name, v in vars(input_limits).items() if isinstance(v, Limit)}
    assert len(limits) > 20
    assert {name: limit.name for name, limit in limits.items()} == {name: name for name in limits}


def test_a_limit_is_a_number_with_a_name() -> None:
    limit = Limit(200_000, "NODES")
    assert limit + 1 == 200_001
    assert limit.note == "(input limit NODES: 200,000)"
    again = pickle.loads(pickle.dumps(limit))
    assert (again, again.note) == (limit, limit.note)
