"""What listens in on everything that passes, as the settings ask for it."""

from __future__ import annotations

from oxygen.core.errors import InvalidInput
from oxygen.serving.flight import Tap
from oxygen.serving.settings import ServeSettings


def open_taps(settings: ServeSettings) -> list[Tap]:
    """The recorder and the viewer. Raises InvalidInput when one is asked for that cannot be had."""
    taps: list[Tap] = []
    if settings.record is not None:
        from oxygen.serving.record import Recorder

        try:
            taps.append(Recorder(settings.record))
        except OSError as error:
            raise InvalidInput("record", "a file that can be written", f"{settings.record}: {error.strerror}") from None
    if settings.rerun:
        try:
            from oxygen.serving.viewer import Viewer
        except ImportError:
            raise InvalidInput("rerun", "the extra `rerun` to be installed", "no package rerun-sdk") from None
        try:
            taps.append(Viewer())
        except RuntimeError as error:  # the package is there, the program that it starts is not
            raise InvalidInput("rerun", "a viewer that can be started", f"{error!s:.80}") from None
    return taps
