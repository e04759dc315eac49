"""Export: a campaign's file as JSON lines, for other tools, in an order that does not depend on timing.

The first line has the `kind` "campaign". Then come the cases (`kind` "case", with `died` "crash" or "timeout"
if the worker died), the investigated findings ("example"), the traits ("trait") and their pairs ("pair"), and
the memory in use ("memory", in bytes).

    with Store.read(Path("found")) as store:
        for line in lines(store): print(line)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fuzz.campaign.records import example_to_json, run_to_json
from fuzz.campaign.store import Store

_FACTS = ("version", "configuration", "versions", "started", "sessions", "elapsed", "known")


def lines(store: Store) -> Iterator[str]:
    """Each line, without a line break."""
    for item in _exported_objects(store):
        yield json.dumps(item)


def _exported_objects(store: Store) -> Iterator[dict[str, Any]]:
    yield {"kind": "campaign", **{key: store.get(key) for key in _FACTS}}
    for row in store.rows():
        seen = run_to_json(store.seen(row.target, row.index) if row.seen.signature else row.seen)
        died = seen.pop("kind")
        yield {"kind": "case", "target": row.target, "case": row.index, "at": row.at, "died": died, **seen}
    for _, example in sorted(store.examples().items()):
        yield {"kind": "example", **example_to_json(example)}
    for (target, trait, outcome), count in sorted(store.traits().items()):
        yield {"kind": "trait", "target": target, "trait": trait, "outcome": outcome, "cases": count}
    for (trait, other), count in sorted(store.pairs().items()):
        yield {"kind": "pair", "traits": [trait, other], "cases": count}
    for sample in store.memory():
        yield {"kind": "memory", **asdict(sample)}
