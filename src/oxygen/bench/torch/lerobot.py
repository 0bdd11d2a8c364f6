"""LeRobot's PI05Policy, through its public interface: configuration, policy, predict_action_chunk. Installed beside us.

Its public configuration knows the real sizes only, so it is compared at `pi05`. Weights are random on both sides; times
do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import torch

from oxygen.bench.setup import Setup
from oxygen.bench.torch.device import synchronize

STATE_DIM = 8


def missing(setup: Setup) -> str:
    """Why the comparison cannot run here, or an empty string."""
    if find_spec("lerobot") is None:
        return "LeRobot is not installed (pip install 'lerobot[pi]' beside this package)"
    if setup.model != "pi05":
        return f"its public interface builds π0.5 in its real size only: use --model pi05, not {setup.model}"
    return ""


def open_chunks(setup: Setup) -> tuple[str, Callable[[], object]]:
    """LeRobot's version, and a function that makes one chunk. Absent cameras are configured, and masked by it."""
    types = import_module("lerobot.configs.types")
    pi05 = import_module("lerobot.policies.pi05")
    shape, spec = setup.shape(), setup.spec()
    size, absent = spec.vision.image_size, spec.num_cameras - shape.num_cameras
    cameras = [f"observation.images.camera_{i}" for i in range(shape.num_cameras)]

    def feature(kind: str, *sizes: int) -> object:
        return types.PolicyFeature(type=types.FeatureType[kind], shape=sizes)

    config = pi05.PI05Config(
        input_features={name: feature("VISUAL", 3, size, size) for name in cameras}
        | {"observation.state": feature("STATE", STATE_DIM)},
        output_features={"action": feature("ACTION", spec.action_dim)},
        chunk_size=shape.horizon,
        n_action_steps=shape.horizon,
        num_inference_steps=setup.num_steps,
        empty_cameras=absent,
        dtype=setup.dtype,
        device=setup.device,
    )
    policy = pi05.PI05Policy(config).to(setup.device).eval()
    ids = torch.randint(2, spec.vocab_size, (1, spec.max_token_len), device=setup.device)
    mask = torch.arange(spec.max_token_len, device=setup.device)[None] < shape.prompt_len
    batch = {name: torch.rand(1, 3, size, size, device=setup.device) for name in cameras}
    batch |= {"observation.state": torch.zeros(1, STATE_DIM, device=setup.device)}
    batch |= {"observation.language.tokens": ids, "observation.language.attention_mask": mask}

    def chunk() -> object:
        with torch.inference_mode():
            actions = policy.predict_action_chunk(batch)
        synchronize(setup.device)
        return actions

    return f"lerobot {version('lerobot')}", chunk
