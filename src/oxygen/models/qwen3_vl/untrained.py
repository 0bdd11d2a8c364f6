"""Inputs and outputs for Qwen3-VL with random weights: it speaks bytes and moves at random, by three heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oxygen.core.errors import CheckpointError, InvalidInput
from oxygen.models.heads.spec import Gr00tSpec, HeadSpec, OftSpec
from oxygen.models.qwen3_vl.spec import Qwen3VLSpec, with_heads
from oxygen.processing.chat import QUERY
from oxygen.processing.chat_config import ChatConfig, ExpertOutput
from oxygen.processing.chat_processor import ChatProcessor
from oxygen.processing.robots import Robot, build_robot
from oxygen.processing.tokenizer import byte_tokenizer_with

HEADS = ("pi", "gr00t", "oft")
CONTEXT_LEN = 768
"""A word takes as many tokens as it has letters here."""


def untrained_qwen3_vl(spec: Qwen3VLSpec, robot: str) -> tuple[dict[str, Any], ChatProcessor]:
    """Sizes that this robot changes (the heads with them), and a processor for the changed model. Raises
    CheckpointError.
    """
    try:
        built = build_robot(robot)
    except InvalidInput as error:
        raise CheckpointError(f"processor: {error}") from error
    heads = tuple(_fitted(head, built) for head in with_heads(spec, HEADS).heads)
    config = ChatConfig(
        robot=robot,
        experts={
            head.name: ExpertOutput(
                head.horizon, head.action_dim, "identity", False, {}, state_dim=head.shape().state_dim
            )
            for head in heads
        },
        state_normalization="identity",
        text_trained=False,
        vocab_size=spec.vocab_size,
        token_pixels=spec.vision.token_pixels,
    )
    end, finish = spec.eos_ids
    control = {"<|im_start|>": 256, "<|im_end|>": end, "<|endoftext|>": finish, "<|image_pad|>": spec.image_id}
    control |= {"<|vision_start|>": spec.vision_start_id, "<|vision_end|>": spec.vision_end_id}
    (query,) = (head.token_id for head in heads if isinstance(head, OftSpec))
    changes = {"heads": heads, "max_context_len": max(spec.max_context_len, CONTEXT_LEN)}
    return changes, ChatProcessor(config, byte_tokenizer_with(control, {QUERY: query}, (end, finish)))


def _fitted(head: HeadSpec, robot: Robot) -> HeadSpec:
    head = replace(head, action_dim=robot.action_dim)
    return replace(head, state_dim=robot.state_dim) if isinstance(head, Gr00tSpec) else head
