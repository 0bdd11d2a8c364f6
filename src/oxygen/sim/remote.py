"""The robot's door over the network: the light client's link to a server, behind the same face as the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from oxygen.core.errors import OxygenError
from oxygen.core.tasks import ActionResult, ActionTask, Observation, TextResult, TextTask

if TYPE_CHECKING:
    from oxygen_client import RobotClient
    from oxygen_client.client import Text


class RemoteText:
    """A text that arrives over the link. Its token ids are the server's secret."""

    def __init__(self, kind: str, text: Text, session: str, frame_id: int, captured_at: float) -> None:
        self.kind = kind
        self._text, self._session, self._frame_id, self._captured_at = text, session, frame_id, captured_at

    @property
    def is_done(self) -> bool:
        return self._text.final is not None

    def result(self, timeout: float | None = None) -> TextResult:
        """Wait for the whole text; raises NoAnswer when it does not come in time."""
        words = self._text.result(timeout)
        final = self._text.final
        if final is None:
            raise OxygenError("the link lost the end of a text")
        return TextResult(
            text=words,
            token_ids=(),
            kind=self.kind,
            session=self._session,
            frame_id=self._frame_id,
            captured_at=self._captured_at,
            finish_reason=final.finish_reason or "stop",
            age_frames=final.age_frames or 0,
            age_s=final.age_s or 0.0,
            ttft_s=None,
        )


class RemoteAnswer:
    def __init__(self, chunk: ActionResult, texts: Sequence[RemoteText]) -> None:
        self.texts = tuple(texts)
        self._chunk = chunk

    def actions(self, timeout: float | None = None) -> ActionResult:
        return self._chunk


class RemoteDoor:
    """Hands frames to a server. The link belongs to the caller.

    A link's frame numbers only grow, an episode's begin again: the door counts for the link and keeps the episode's.
    """

    def __init__(self, client: RobotClient, timeout_s: float = 60.0) -> None:
        self._client, self._timeout_s = client, timeout_s
        self._num_frames = 0

    def submit(self, observation: Observation, actions: ActionTask | None, texts: Sequence[TextTask]) -> RemoteAnswer:
        """Send a frame and wait for its actions (every frame over this link is one that acts)."""
        message: dict[str, object] = {f"observation/{name}": picture for name, picture in observation.images.items()}
        message |= {"observation/state": observation.state, "prompt": observation.prompt}
        self._num_frames += 1
        frame_id = self._num_frames if observation.frame_id is None else observation.frame_id
        noise = None if actions is None else actions.noise
        chunk = self._client.infer(
            message,
            [_written(task) for task in texts],
            timeout=self._timeout_s,
            frame_id=self._num_frames,
            noise=noise,
        )
        if len(chunk.text_ids) < len(texts):
            raise OxygenError(f"the server began {len(chunk.text_ids)} of {len(texts)} texts: it is at its limit")
        session = observation.session
        result = ActionResult(
            np.asarray(chunk.actions, np.float64),
            session,
            frame_id,
            chunk.sent_at,
            "action",
            chunk.received_at - chunk.sent_at,
        )
        begun = [
            RemoteText(task.kind, self._client.text(text_id), session, frame_id, chunk.sent_at)
            for task, text_id in zip(texts, chunk.text_ids, strict=True)
        ]
        return RemoteAnswer(result, begun)


def _written(task: TextTask) -> dict[str, object]:
    written: dict[str, object] = {"kind": task.kind, "max_new_tokens": task.max_new_tokens}
    return written if task.question is None else written | {"question": task.question}
