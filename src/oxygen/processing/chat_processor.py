"""Observations and tasks to the inputs of a causal chat model, and chunks of several experts to robot units.

Every task's whole prompt is written as token ids; what the action experts' prompts begin with in common is the context,
what follows is private to each expert. A text reads as much of that context as its own prompt begins with, so asking
for text never changes what the actions read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from oxygen.core.errors import CheckpointError, InvalidInput, OxygenError
from oxygen.core.inputs import ContextInputs, EncodedTask, ModelInputs
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.processing.chat import ChatTemplate, build_templates, check_words, common_length
from oxygen.processing.chat_config import ChatConfig, ExpertOutput
from oxygen.processing.fast import FAST, FastCodec, FastExpert
from oxygen.processing.grid import fit_to_grid
from oxygen.processing.images import as_picture
from oxygen.processing.prompts import state_text
from oxygen.processing.robots import build_robot
from oxygen.processing.robots.robot import as_state
from oxygen.processing.starvla import UNNORM_KEY, KeyedObservation, choose, from_units, modes_of
from oxygen.processing.statistics import Statistics
from oxygen.processing.tokenizer import Tokenizer

log = logging.getLogger("oxygen.processing")


@dataclass(frozen=True, slots=True, eq=False)
class EncodedChat(ModelInputs):
    """ModelInputs with what made them, so that a late question can be put on a context that exists.

    open_from: tokens up to the end of the pictures; a text shares at least these or nothing. statistics: for the way
    back to robot units.
    """

    words: Mapping[str, str | None] = field(default_factory=dict)
    image_ids: tuple[int, ...] = ()
    open_from: int = 1
    statistics: Statistics | None = None


class ChatProcessor:
    """The room's front door for chat models. Safe to use from several threads. kinds: text kinds that may be asked
    for. image_token_ids: before a picture, for each of its tokens, and behind it. fast: where chunks may be written as
    text: its tasks are asked for like any text, and it reads what they say.
    """

    def __init__(
        self,
        config: ChatConfig,
        tokenizer: Tokenizer,
        sets: Sequence[Statistics] = (),
        codec: FastCodec | None = None,
    ) -> None:
        """sets: statistics to choose from. One that does not fit the robot is not on offer. Where the configuration
        names none of several, every request must. codec: for `config.fast`. Raises CheckpointError where the parts do
        not fit each other.
        """
        self.config, self.tokenizer = config, tokenizer
        try:
            self.robot = build_robot(config.robot)
        except InvalidInput as error:
            raise CheckpointError(f"processor: {error}") from error
        horizons = {name: output.horizon for name, output in config.experts.items()}
        prompts = {name: output.prompt for name, output in config.experts.items() if output.prompt is not None}
        if config.fast is not None:
            prompts[FAST] = config.fast.output.prompt or "{prompt}"
        self.templates = build_templates(config.templates, prompts, config.wrapper, horizons, tokenizer)
        self.kinds = tuple(kind for kind in self.templates if kind not in (*config.experts, "action", FAST))
        self.image_token_ids = tuple(self._control(name) for name in config.image_tokens)
        if silent := [name for name in config.experts if not {name, "action"} & self.templates.keys()]:
            raise CheckpointError(f"processor: templates: no prompt for expert {silent[0]}")
        self._modes = {name: output.modes(name, self.robot) for name, output in config.experts.items()}
        self._state_modes = self._modes_of_state()
        vocab_size = config.vocab_size or tokenizer.vocab_size
        self.forbidden_ids = tokenizer.forbidden(config.forbidden, vocab_size) if config.forbidden else None
        self.fast: FastExpert | None = None
        read = [("actions", modes) for modes in self._modes.values()] + [("state", self._state_modes)]
        if config.fast is not None and codec is not None:
            self.fast = FastExpert(
                codec, config.fast.first_id, config.fast.output, config.fast.output.modes(FAST, self.robot)
            )
            self.forbidden_ids = self.fast.forbidden(tokenizer, vocab_size, self.forbidden_ids)
            read.append(("actions", self.fast.modes))
        self.sets, self.statistics = choose(sets, config.asset_id, read)
        self._warned: set[str] = set()

    def parse(
        self,
        raw: Mapping[str, Any],
        *,
        session: str = "default",
        frame_id: int | None = None,
        captured_at: float | None = None,
    ) -> Observation:
        """Read one message of this robot, and the `unnorm_key` in it. Raises InvalidInput with the field, expected and
        got.
        """
        key = raw.get(UNNORM_KEY)
        raw = {name: value for name, value in raw.items() if name != UNNORM_KEY}
        images, state, prompt = self.robot.parse(raw, self._warned)
        return KeyedObservation(images, state, prompt, session, frame_id, captured_at, key)

    def encode(self, observation: Observation, actions: Sequence[ActionTask], texts: Sequence[TextTask]) -> EncodedChat:
        """Encode a frame with its tasks. Raises InvalidInput."""
        pictures = self._pictures(observation.images)
        statistics = self.statistics_of(observation, bool(actions) or any(task.kind == FAST for task in texts))
        state, words = self._words(observation, statistics)
        image_ids = self._image_tokens(pictures)
        outputs = [self._output(task.expert)[1] for task in actions]
        if state is None and any(output.state_dim for output in outputs):
            raise InvalidInput("state", f"{self.robot.state_dim} numbers, which an expert reads", "none")
        asked = [self._for_action(task.expert).token_ids(words, image_ids, self.tokenizer) for task in actions]
        wanted = [self._text_ids(task, words, image_ids) for task in texts]
        open_from = max(start for _, start in (*asked, *wanted))
        prompts = [ids for ids, _ in asked] or [ids for ids, _ in wanted]
        core = prompts[0][: reduce(min, (common_length(prompts[0], other) for other in prompts))]
        if asked and len(core) < open_from:
            raise InvalidInput(
                "actions", "experts whose prompts agree up to the pictures", "prompts that differ before"
            )
        contexts = [ContextInputs(pictures, core, len(core))]
        if not asked and len(core) < open_from:
            contexts.clear()
        acting = tuple(EncodedTask(0, ids[len(core) :]) for ids, _ in asked)
        speaking: list[EncodedTask] = []
        for ids, start in wanted:
            task = _on_core(ids, core, max(start, open_from)) if contexts and contexts[0].token_ids == core else None
            if task is None:
                at = next((i for i, context in enumerate(contexts) if context.token_ids == ids), len(contexts))
                if at == len(contexts):
                    contexts.append(ContextInputs(pictures, ids, len(ids)))
                task = EncodedTask(at)
            speaking.append(task)
        unshared = sum(task.context != 0 for task in speaking)
        found = (state, unshared, words, image_ids, open_from, statistics)
        return EncodedChat(tuple(contexts), acting, tuple(speaking), *found)

    def encode_text(self, inputs: ModelInputs, text: TextTask) -> EncodedTask | None:
        """Encode a late question on context 0 of a frame encoded before; None where too little of it can be shared."""
        if not isinstance(inputs, EncodedChat) or not inputs.contexts:
            return None
        ids, start = self._text_ids(text, inputs.words, inputs.image_ids)
        return _on_core(ids, inputs.contexts[0].token_ids, max(start, inputs.open_from))

    def tail_len(self, observation: Observation | None, text: TextTask) -> int:
        """Tokens that a text's own prompt takes of its row at most: all behind the pictures. Without an observation its
        instruction counts as nothing.
        """
        words: dict[str, str | None] = {"prompt": "", "state": ""}
        if observation is not None:
            _, words = self._words(observation, self.statistics_of(observation, False))
        ids, start = self._text_ids(text, words, self.image_token_ids)
        return len(ids) - start

    def decode_actions(self, actions: np.ndarray, inputs: ModelInputs, expert: str = "action") -> np.ndarray:
        """[H, action_dim] float32 normalised, of an expert -> [H, robot action_dim] float64 in robot units."""
        name, output = self._output(expert)
        if actions.ndim != 2 or actions.shape[1] != output.action_dim:
            raise InvalidInput("actions", f"[horizon, {output.action_dim}]", f"{list(actions.shape)}")
        if not np.isfinite(actions).all():
            raise OxygenError("actions are not finite")
        statistics = inputs.statistics if isinstance(inputs, EncodedChat) else self.statistics
        return output.units(actions, self._modes[name], statistics)

    def describe(self) -> dict[str, Any]:
        """Everything that an operator or a client should see, as plain data."""
        config, robot, statistics = self.config, self.robot, self.statistics
        return {
            **robot.metadata,
            "robot": robot.name,
            "cameras": {c.name: {"required": c.required, "key": ".".join(c.keys[0])} for c in robot.cameras},
            "state": {"dim": robot.state_dim, "keys": {".".join(part.keys[0]): part.dim for part in robot.state}},
            "actions": {"dim": robot.action_dim, "horizon": max(e.horizon for e in config.experts.values())}
            if config.experts
            else {"dim": robot.action_dim},
            "experts": config.to_dict()["experts"],
            "fast": config.to_dict()["fast"],
            "image": {"first_size": config.first_size, "min_pixels": config.min_pixels, "order": "RGB"},
            "text_kinds": list(self.kinds),
            "text_trained": config.text_trained,
            "wrapper": config.wrapper,
            "normalization": {
                "asset_ids": list(self.sets),
                "asset_id": statistics.asset_id if statistics else None,
                "digest": statistics.digest if statistics else None,
            },
            "vocab_size": self.tokenizer.vocab_size,
            "control_hz": robot.control_hz,
        }

    def _control(self, name: str) -> int:
        vocabulary = self.tokenizer.vocabulary
        if name not in vocabulary.names:
            raise CheckpointError(f"the tokenizer has no token {name}")
        return vocabulary.names.index(name)

    def _output(self, expert: str) -> tuple[str, ExpertOutput]:
        outputs = self.config.experts
        name = next(iter(outputs), expert) if expert == "action" and expert not in outputs else expert
        if name not in outputs:
            raise InvalidInput("expert", f"one of {', '.join(outputs) or '(none)'}", repr(expert))
        return name, outputs[name]

    def _for_action(self, expert: str) -> ChatTemplate:
        found = self.templates.get(expert) or self.templates.get("action")
        if found is None:
            raise InvalidInput("expert", "one with a prompt of its own", repr(expert))
        return found

    def _text_ids(
        self, task: TextTask, words: Mapping[str, str | None], image_ids: Sequence[int]
    ) -> tuple[tuple[int, ...], int]:
        if self.fast is not None and task.kind == FAST:
            self.fast.check(task)
        elif task.kind not in self.kinds:
            raise InvalidInput("kind", f"one of {', '.join(self.kinds) or '(none)'}", repr(task.kind))
        template = self.templates[task.kind]
        check_words("question", task.question, self.config.max_prompt_chars)
        if task.question is not None and "question" not in template.fields():
            raise InvalidInput("question", f"none: a {task.kind} task has no place for it", "a question")
        return template.token_ids({**words, "question": task.question}, image_ids, self.tokenizer)

    def _pictures(self, images: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """Those that came, in the robot's order, each as large as the model takes it."""
        if not isinstance(images, Mapping):
            raise InvalidInput("images", "a map of camera to picture", type(images).__name__)
        config, found = self.config, []
        for camera in self.robot.cameras:
            if images.get(camera.name) is None:
                if camera.required:
                    raise InvalidInput("images", f"a picture of {camera.name}", f"{sorted(images)}")
                continue
            picture = as_picture(images[camera.name], camera.name, camera.layout)
            limits = (config.first_size, config.token_pixels, config.min_pixels, config.max_pixels)
            found.append(fit_to_grid(picture, *limits))
        if not found:
            raise InvalidInput("images", f"at least one of {[c.name for c in self.robot.cameras]}", f"{sorted(images)}")
        return tuple(found)

    def _image_tokens(self, pictures: Sequence[np.ndarray]) -> tuple[int, ...]:
        start, pad, end = self.image_token_ids
        side = self.config.token_pixels**2
        return tuple(i for p in pictures for i in (start, *(pad,) * (p.shape[0] * p.shape[1] // side), end))

    def _words(
        self, observation: Observation, statistics: Statistics | None
    ) -> tuple[np.ndarray | None, dict[str, str | None]]:
        prompt = observation.prompt if observation.prompt is not None else self.config.default_prompt
        check_words("prompt", prompt, self.config.max_prompt_chars)
        if observation.state is None or not self._state_modes:
            return None, {"prompt": prompt, "state": None}
        state = as_state(observation.state, "state", self.robot.state_dim)
        state = from_units(state, self._state_modes, statistics.state if statistics else None)
        return state.astype(np.float32), {"prompt": prompt, "state": state_text(state)}

    def _modes_of_state(self) -> tuple[str, ...]:
        """Of each number of the state; nothing where nobody reads it."""
        dim = self.robot.state_dim
        for name, output in self.config.experts.items():
            if output.state_dim not in (0, dim):
                raise CheckpointError(
                    f"robot {self.robot.name}: {dim} numbers of state, expert {name} reads {output.state_dim}"
                )
        is_read = any(output.state_dim for output in self.config.experts.values())
        if is_read or any("state" in template.fields() for template in self.templates.values()):
            return modes_of(self.config.state_normalization, dim, "processor: state_normalization")
        return ()

    def statistics_of(self, observation: Observation, is_acted_on: bool = True) -> Statistics | None:
        """Those that the observation names, else the checkpoint's own; required where a number goes through them."""
        key = observation.unnorm_key if isinstance(observation, KeyedObservation) else None
        is_needed = is_acted_on or any(mode != "identity" for mode in self._state_modes)
        if key is None and (self.statistics is not None or not self.sets or not is_needed):
            return self.statistics
        if not isinstance(key, str) or key not in self.sets:
            got = "none, and the checkpoint has several" if key is None else repr(key)[:80]
            raise InvalidInput(UNNORM_KEY, f"one of {', '.join(self.sets) or '(none)'}", got)
        return self.sets[key]


def _on_core(ids: tuple[int, ...], core: tuple[int, ...], open_from: int) -> EncodedTask | None:
    """A prompt on a context: how much of it is read, and what follows. None where less than the pictures is shared.

    A prompt that ends inside the context keeps its last token for itself: only what is prefilled gives a next token.
    """
    shared = common_length(ids, core)
    if shared == len(ids) < len(core):
        shared -= 1
    if shared < open_from:
        return None
    return EncodedTask(0, ids[shared:], 0 if shared == len(core) else shared)
