"""What a worker does with the memory of its process between two cases."""

from __future__ import annotations

import gc
import weakref

from fuzz.campaign.workers import handlers


class _Garbage:
    def __init__(self) -> None:
        self.itself = self


def test_what_was_there_before_a_case_is_collected_or_passed_over() -> None:
    gc.disable()
    try:
        kept, garbage = [_Garbage()], weakref.ref(_Garbage())
        handlers.handle_item(handlers.case_item(0, 0, "single", "cpu", "eager"))
        assert garbage() is None
        assert not any(one is kept for one in gc.get_objects())
    finally:
        gc.enable()
