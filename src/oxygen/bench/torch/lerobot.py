"""LeRobot's PI05Policy, through its public interface: configuration, from_pretrained, predict_action_chunk.

Its configuration names two sizes, those of the released model. For other sizes the places where its code looks sizes up
(the variant's widths, the configurations of the two Hugging Face models) are told others while the policy is built;
nothing that computes is touched. Weights come from a folder that both codes read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from oxygen.bench.setup import Setup
from oxygen.bench.torch.device import synchronize
from oxygen.core.inputs import ContextInputs
from oxygen.models.pi05.spec import GemmaSpec, Pi05Spec

STATE_DIM = 8
INSTALL = (
    "LeRobot is not installed. It wants Python 3.12 or later and brings its own torch: python3.12 -m venv lerobot;"
    " lerobot/bin/pip install 'lerobot[pi]==0.6.1' '.[bench]'; lerobot/bin/python -m oxygen.bench compare"
)
Chunk = Callable[[], np.ndarray]


def missing(setup: Setup) -> str:
    """Why the comparison cannot run here, or an empty string."""
    if find_spec("lerobot") is None:
        return INSTALL
    spec = setup.spec()
    if not isinstance(spec, Pi05Spec):
        return f"its code has no {setup.model}: use a π0.5"
    if spec.vision.stem != "patch":
        return f"its code has no {spec.vision.stem} stem, which {setup.model} begins with"
    return ""


def open_chunks(setup: Setup, folder: Path | None, inputs: ContextInputs, noise: np.ndarray) -> tuple[str, Chunk]:
    """LeRobot's version, and a function that makes the chunk [horizon, action_dim] of one frame, device waited for.

    folder: of the weights; None lets it make random ones of its own. Absent cameras are configured, and masked by it.
    Pictures and tokens are tensors on the device beforehand, as it takes them.
    """
    pi05 = import_module("lerobot.policies.pi05")
    spec: Pi05Spec = setup.spec()
    config = _config(setup, spec, len(inputs.images))
    with redirect_stdout(sys.stderr), _sizes(spec):
        policy = pi05.PI05Policy(config) if folder is None else _load(pi05.PI05Policy, folder, config)
    policy = policy.to(setup.device).eval()
    batch = _batch(spec, inputs, setup.device)
    start = torch.from_numpy(noise)[None].to(setup.device)

    def chunk() -> np.ndarray:
        with torch.inference_mode():
            actions = policy.predict_action_chunk(batch, noise=start, num_steps=setup.num_steps)
        synchronize(setup.device)
        found: np.ndarray = actions[0].float().cpu().numpy()
        return found

    return version("lerobot"), chunk


def _load(policy: Any, folder: Path, config: Any) -> Any:
    # Not strict: it has a text head of the action expert, which nothing reads and our folders leave out. Where loading
    # fails it says so and goes on with random weights: the comparison of actions would show it.
    return policy.from_pretrained(folder, config=config, strict=False)


def _config(setup: Setup, spec: Pi05Spec, num_cameras: int) -> Any:
    configs, pi05 = import_module("lerobot.configs"), import_module("lerobot.policies.pi05")
    size = spec.vision.image_size

    def feature(kind: str, *sizes: int) -> object:
        return configs.PolicyFeature(type=configs.FeatureType[kind], shape=sizes)

    cameras = {_camera(i): feature("VISUAL", 3, size, size) for i in range(num_cameras)}
    return pi05.PI05Config(
        input_features=cameras | {"observation.state": feature("STATE", STATE_DIM)},
        output_features={"action": feature("ACTION", spec.action_dim)},
        chunk_size=spec.horizon,
        n_action_steps=spec.horizon,
        max_action_dim=spec.action_dim,
        image_resolution=(size, size),
        tokenizer_max_length=spec.max_token_len,
        num_inference_steps=setup.num_steps,
        empty_cameras=spec.num_cameras - num_cameras,
        dtype=setup.dtype,
        device=setup.device,
    )


def _camera(index: int) -> str:
    return f"observation.images.camera_{index}"


def _batch(spec: Pi05Spec, inputs: ContextInputs, device: str) -> dict[str, torch.Tensor]:
    """One frame as its policy takes it: pictures [1, 3, H, W] in 0..1, the prompt padded to its full length."""
    batch = {
        _camera(i): torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
        for i, image in enumerate(inputs.images)
    }
    count = len(inputs.token_ids)
    ids = torch.zeros(1, spec.max_token_len, dtype=torch.int64)
    ids[0, :count] = torch.tensor(inputs.token_ids)
    batch |= {
        "observation.language.tokens": ids,
        "observation.language.attention_mask": torch.arange(spec.max_token_len)[None] < count,
        "observation.state": torch.zeros(1, STATE_DIM),
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


@contextmanager
def _sizes(spec: Pi05Spec) -> Iterator[None]:
    """While this lasts, its code finds our sizes where it looks for those of its two variants."""
    module = import_module("lerobot.policies.pi05.modeling_pi05")
    parts: dict[str, GemmaSpec] = {"gemma_2b": spec.trunk, "gemma_300m": spec.expert}
    both, expert = module.PaliGemmaForConditionalGenerationWithPiGemma, module.PiGemmaForCausalLM

    def gemma(variant: str) -> Any:
        p = parts[variant]
        return module.GemmaConfig(p.width, p.depth, p.mlp_width, p.num_heads, p.num_kv_heads, p.head_dim)

    def resized(config: Any) -> Any:
        v = config.vision_config
        v.hidden_size, v.num_hidden_layers, v.intermediate_size = (
            spec.vision.width,
            spec.vision.depth,
            spec.vision.mlp_width,
        )
        v.num_attention_heads, v.patch_size = spec.vision.num_heads, spec.vision.patch_size
        v.projection_dim = config.projection_dim = spec.trunk.width
        config.text_config.vocab_size = spec.vocab_size
        config.image_token_index = spec.vocab_size - 1
        return both(config=config)

    def resized_expert(config: Any) -> Any:
        config.vocab_size = spec.vocab_size
        return expert(config=config)

    with (
        patch.object(module, "get_gemma_config", gemma),
        patch.object(module, "PaliGemmaForConditionalGenerationWithPiGemma", lambda config: resized(config)),
        patch.object(module, "PiGemmaForCausalLM", lambda config: resized_expert(config)),
    ):
        yield
