"""What has ended is freed at once, without the garbage collector: pictures of old frames do not pile up."""

from __future__ import annotations

import gc
from typing import Any

from fakes import frame

from oxygen.core.tasks import TextTask
from oxygen.scheduler.state import Request, Text


def test_ended_requests_are_freed_without_the_collector(make: Any) -> None:
    engine = make(keep_context_s=0.0)
    gc.collect()
    gc.disable()
    try:
        for number in range(20):
            engine.submit(frame(number=number), texts=[TextTask("answer", max_new_tokens=3)] * 2)
            engine.step()
        alive = [o for o in gc.get_objects() if type(o) in (Request, Text)]
    finally:
        gc.enable()
    assert len(alive) <= 6, f"{len(alive)} requests and texts outlive their end"
