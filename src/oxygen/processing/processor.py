"""Observations and tasks to model inputs, model outputs to robot units: everything between a robot's bytes and the
model.

One Processor serves all threads: it holds settings and tables only, and what belongs to a frame travels in its
ModelInputs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from oxygen.core.errors import CheckpointError, InvalidInput, OxygenError
from oxygen.core.inputs import ContextInputs, EncodedTask, ModelInputs
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.processing.assembly import describe_normalization, normalizers_of, robot_of
from oxygen.processing.config import ProcessorConfig
from oxygen.processing.images import as_picture, resize_with_pad
from oxygen.processing.prompts import FIELDS, Template, TemplateSet, state_text
from oxygen.processing.robots.robot import as_state
from oxygen.processing.statistics import Statistics
from oxygen.processing.tokenizer import Tokenizer
from oxygen.processing.transforms import AbsoluteActions, DeltaActions, Frame, MapFields, Pipeline, pad_to

log = logging.getLogger("oxygen.processing")


@dataclass(frozen=True, slots=True, eq=False)
class EncodedFrame(ModelInputs):
    """ModelInputs with the words that made them, so that a late question can be put on a context that exists.

    words: values of the template fields, state already written as bins.
    """

    words: Mapping[str, str | None] = field(default_factory=dict)


class Processor:
    """The room's front door. Safe to use from several threads.

    tokenizer: of the checkpoint. kinds: text kinds that may be asked for. forbidden_ids: [vocab_size] bool, true for
    tokens that no text may contain, or None where nothing is forbidden.
    """

    def __init__(self, config: ProcessorConfig, tokenizer: Tokenizer, statistics: Statistics | None = None) -> None:
        """Raises CheckpointError where configuration, statistics and tokenizer do not fit each other."""
        self.config = config
        self.tokenizer = tokenizer
        self.statistics = statistics
        self.robot = robot_of(config)
        self.templates = TemplateSet.build(config.templates)
        self.kinds = self.templates.text_kinds
        self.delta_mask = self.robot.delta_mask if config.delta_mask is None else tuple(config.delta_mask)
        self._normalizers = normalizers_of(config, self.robot, statistics)
        self._pipeline = self._build_pipeline()
        used = {name for template in self.templates.templates.values() for name in template.fields()}
        self._needs_state = "state" in used or any(self.delta_mask)
        if self._needs_state and not self.robot.state_dim:
            raise CheckpointError(
                f"robot {self.robot.name} sends no state, which this checkpoint's prompts or actions need"
            )
        self._check_tails()
        self._warned: set[str] = set()
        vocab_size = tokenizer.vocab_size if config.vocab_size is None else config.vocab_size
        if tokenizer.vocab_size > vocab_size:
            raise CheckpointError(f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {vocab_size}")
        self.forbidden_ids = tokenizer.forbidden(config.forbidden, vocab_size) if config.forbidden else None

    def parse(
        self,
        raw: Mapping[str, Any],
        *,
        session: str = "default",
        frame_id: int | None = None,
        captured_at: float | None = None,
    ) -> Observation:
        """Read one message of this robot (openpi's keys). Raises InvalidInput with the field, expected and got."""
        images, state, prompt = self.robot.parse(raw, self._warned)
        return Observation(images, state, prompt, session, frame_id, captured_at)

    def encode(
        self, observation: Observation, actions: Sequence[ActionTask], texts: Sequence[TextTask]
    ) -> EncodedFrame:
        """Encode a frame with its tasks. Raises InvalidInput.

        Tasks with equal prefix tokens share a context. Context 0 is that of the first action task, or of the first
        text.
        """
        pictures = self._pictures(observation.images)
        padded, words = self._words(observation)
        contexts: list[ContextInputs] = []
        known: dict[tuple[str, ...], int] = {}

        def place(template: Template, question: str | None) -> EncodedTask:
            prefix, tail = template.fill({**words, "question": question})
            if prefix not in known:
                ids = self._prefix_ids(prefix)
                known[prefix] = next((i for i, c in enumerate(contexts) if c.token_ids == ids), len(contexts))
                if known[prefix] == len(contexts):
                    num_tokens = len(pictures) * self.config.tokens_per_image + len(ids)
                    contexts.append(ContextInputs(pictures, ids, num_tokens))
            return EncodedTask(known[prefix], self._tail_ids(tail))

        acting = tuple(place(self.templates.for_action(task.expert), None) for task in actions)
        speaking = tuple(place(*self._asked(task)) for task in texts)
        num_unshared = sum(task.context != 0 for task in (*acting, *speaking))
        return EncodedFrame(tuple(contexts), acting, speaking, padded, num_unshared, words)

    def encode_text(self, inputs: ModelInputs, text: TextTask) -> EncodedTask | None:
        """Encode a late question on context 0 of a frame encoded before; None where sharing it would not be exact."""
        if not isinstance(inputs, EncodedFrame) or not inputs.contexts:
            return None
        template, question = self._asked(text)
        prefix, tail = template.fill({**inputs.words, "question": question})
        if self._prefix_ids(prefix) != inputs.contexts[0].token_ids:
            return None
        return EncodedTask(0, self._tail_ids(tail))

    def tail_len(self, observation: Observation | None, text: TextTask) -> int:
        """Tokens that a text's own prompt takes of its row. Without an observation only the question fills it."""
        template, question = self._asked(text)
        words = {} if observation is None else self._words(observation)[1]
        return len(self._tail_ids(template.fill_tail({**words, "question": question})))

    def decode_actions(self, actions: np.ndarray, inputs: ModelInputs, expert: str = "action") -> np.ndarray:
        """[H, action_dim] float32 normalised -> [H, robot action_dim] float64 in robot units.

        Offsets are added to the state that the model was given, brought back from its float32, as openpi does. Raises
        OxygenError for actions that are not finite, whatever made them so: none may reach a motor.
        """
        if actions.ndim != 2 or actions.shape[1] != self.config.action_dim:
            raise InvalidInput("actions", f"[horizon, {self.config.action_dim}]", f"{list(actions.shape)}")
        frame: Frame = {"actions": actions}
        if inputs.state is not None:
            frame["state"] = inputs.state
        elif any(self.delta_mask):
            raise InvalidInput("state", "the state that the actions are relative to", "none")
        decoded = self._pipeline.run_outputs(frame)["actions"].astype(np.float64)
        if not np.isfinite(decoded).all():
            step, dim = (int(i) for i in np.argwhere(~np.isfinite(decoded))[0])
            raise OxygenError(f"actions are not finite: {decoded[step, dim]} in step {step}, dimension {dim}")
        return decoded

    def encode_actions(self, actions: np.ndarray, state: np.ndarray | None = None) -> np.ndarray:
        """The way in, for training: [H, robot action_dim] in robot units -> [H, action_dim] float32 normalised."""
        frame: Frame = {"actions": np.asarray(actions, dtype=np.float64)}
        if state is not None:
            frame["state"] = as_state(state, "state", self.robot.state_dim)
        return pad_to(self._pipeline.run_inputs(frame)["actions"], self.config.action_dim).astype(np.float32)

    def describe(self) -> dict[str, Any]:
        """Everything that an operator or a client should see, as plain data (metadata, `oxygen inspect`, the log)."""
        config, robot = self.config, self.robot
        return {
            **robot.metadata,
            "robot": robot.name,
            "cameras": {
                camera.name: {"slot": camera.slot, "required": camera.required, "key": ".".join(camera.keys[0])}
                for camera in robot.cameras
            },
            "state": {"dim": robot.state_dim, "keys": {".".join(part.keys[0]): part.dim for part in robot.state}},
            "actions": {
                "dim": robot.action_dim,
                "horizon": config.horizon,
                "parts": [asdict(part) for part in robot.actions],
                "relative_to_state": list(self.delta_mask),
            },
            "control_hz": robot.control_hz,
            "replan_steps": robot.replan_steps,
            "image": {"size": config.image_size, "tokens": config.tokens_per_image, "order": "RGB"},
            "prompts": self.templates.to_dict(),
            "text_kinds": list(self.kinds),
            "text_trained": config.text_trained,
            "max_token_len": config.max_token_len,
            "normalization": describe_normalization(config, self._normalizers, self.statistics),
            "vocab_size": self.tokenizer.vocab_size,
            "num_forbidden_ids": 0 if self.forbidden_ids is None else int(self.forbidden_ids.sum()),
        }

    def _check_tails(self) -> None:
        """What stands in a tail before any question must leave it room."""
        for kind, template in self.templates.templates.items():
            words = template.fill_tail(dict.fromkeys(FIELDS, ""))
            if (num_tokens := len(self._token_ids(words, bos=False))) > self.config.max_tail_len:
                raise CheckpointError(
                    f"templates: the tail of {kind:.80} takes {num_tokens} tokens, max_tail_len is "
                    f"{self.config.max_tail_len}"
                )

    def _build_pipeline(self) -> Pipeline:
        robot, mask = self.robot, self.delta_mask
        if len(mask) > robot.action_dim or (any(mask) and len(mask) > robot.state_dim):
            raise CheckpointError(
                f"delta_mask of {len(mask)} for {robot.action_dim} actions and {robot.state_dim} states"
            )
        pipeline = robot.pipeline
        if any(mask):
            pipeline = pipeline.push((DeltaActions(mask),), (AbsoluteActions(mask),))
        into = {name: normalizer.normalize for name, normalizer in self._normalizers.items()}
        back = {name: normalizer.unnormalize for name, normalizer in self._normalizers.items()}
        return pipeline.push((MapFields(into),), (MapFields(back),))

    def _pictures(self, images: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """Valid cameras in slot order, resized. Names of the robot or of the model's slots are both understood."""
        if not isinstance(images, Mapping):
            raise InvalidInput("images", "a map of camera name to picture", type(images).__name__)
        by_slot: dict[str, np.ndarray] = {}
        for camera in self.robot.cameras:
            given = [name for name in (camera.name, camera.slot) if images.get(name) is not None]
            if not given:
                if camera.required:
                    expected = [c.name for c in self.robot.cameras if c.required]
                    raise InvalidInput(
                        "images", f"the cameras {expected}", f"{sorted(map(str, images))}, without {camera.name}"
                    )
                continue
            if len(given) > 1 and camera.name != camera.slot:
                raise InvalidInput("images", f"one picture for {camera.slot}", f"{given}")
            picture = as_picture(images[given[0]], given[0], camera.layout)
            resized = resize_with_pad(picture, self.config.image_size, self.config.image_size, given[0])
            # The model reads it later, in another thread: a camera's buffer may hold the next frame by then.
            is_at_risk = resized is picture and (resized.flags.writeable or not resized.flags.c_contiguous)
            by_slot[camera.slot] = resized.copy() if is_at_risk else resized
        if not by_slot:
            raise InvalidInput(
                "images", f"at least one of {[c.name for c in self.robot.cameras]}", f"{sorted(map(str, images))}"
            )
        return tuple(by_slot[slot] for slot in self.config.slots if slot in by_slot)

    def _words(self, observation: Observation) -> tuple[np.ndarray | None, dict[str, str | None]]:
        """The state padded for the model ([action_dim] float32), and the values of the template fields."""
        prompt = observation.prompt if observation.prompt is not None else self.config.default_prompt
        self._check_words("prompt", prompt)
        if observation.state is None or not self.robot.state_dim:
            if self._needs_state:
                raise InvalidInput("state", f"{self.robot.state_dim} numbers, which this checkpoint reads", "none")
            return None, {"prompt": prompt, "state": None}
        state = as_state(observation.state, "state", self.robot.state_dim)
        # The prompt shows the state at its own length and full precision: padding comes after.
        normal = self._pipeline.run_inputs({"state": state})["state"]
        padded = pad_to(normal, self.config.action_dim).astype(np.float32)
        return padded, {"prompt": prompt, "state": state_text(normal)}

    def _asked(self, task: TextTask) -> tuple[Template, str | None]:
        template = self.templates.for_text(task.kind)
        self._check_words("question", task.question)
        if task.question is not None and "question" not in template.fields():
            raise InvalidInput("question", f"none: a {task.kind} task has no place for it", "a question")
        if task.question is not None and not task.question.strip():
            raise InvalidInput("question", "words", "an empty question")
        return template, task.question

    def _check_words(self, name: str, text: str | None) -> None:
        if text is None:
            return
        if not isinstance(text, str):
            raise InvalidInput(name, "text", type(text).__name__)
        if len(text) > self.config.max_prompt_chars:
            raise InvalidInput(name, f"at most {self.config.max_prompt_chars} characters", f"{len(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(name, "text that UTF-8 can hold", f"{error.reason} at {error.start}") from None

    def _prefix_ids(self, texts: Sequence[str]) -> tuple[int, ...]:
        ids = self._token_ids(texts, bos=True)
        if len(ids) > self.config.max_token_len:
            log.warning("prompt of %d tokens cut to %d: its end is lost", len(ids), self.config.max_token_len)
        return tuple(ids[: self.config.max_token_len])

    def _tail_ids(self, texts: Sequence[str]) -> tuple[int, ...]:
        ids = self._token_ids(texts, bos=False)
        if len(ids) > self.config.max_tail_len:
            raise InvalidInput("question", f"a text prompt of at most {self.config.max_tail_len} tokens", f"{len(ids)}")
        return tuple(ids)

    def _token_ids(self, texts: Sequence[str], bos: bool) -> list[int]:
        return [i for n, text in enumerate(texts) for i in self.tokenizer.encode(text, bos=bos and n == 0)]
