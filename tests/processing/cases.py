"""What the tests of this room share: golden data, tiny tokenizers, statistics and messages of each robot."""

from __future__ import annotations

import functools
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Pieces

from oxygen.processing import Processor, Statistics, Tokenizer, load_tokenizer, preset

DATA = Path(__file__).parents[1] / "data" / "preprocessing"
STATE_DIMS = {"libero": 8, "droid": 8, "aloha": 14}
ACTION_DIMS = {"libero": 7, "droid": 8, "aloha": 14}
TEXTS = [
    "Task: pick up the red block, State: 140 64 254 -1 255 128 0 255;\nAction: ",
    "Task: open the drawer. Subtask: move to the handle",
    "Question: what is in front of the robot? Answer: a cup on a plate",
    " ".join(str(i) for i in range(-1, 256)),
] * 20


@functools.cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="oxygen-tokenizers-"))


@functools.cache
def sentencepiece_file(dummy_prefix: bool = False) -> Path:
    """A small model with Gemma's conventions: ids 0 pad, 1 end, 2 begin, 3 unknown, bytes for what has no piece."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=out,
        vocab_size=420,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=dummy_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        user_defined_symbols=["<unused0>", "<loc0001>", "<seg001>", "\n"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path = folder() / f"dummy{dummy_prefix}.model"
    path.write_bytes(out.getvalue())
    return path


@functools.cache
def byte_level_file() -> Path:
    """A small byte-level vocabulary (the shape of Qwen's)."""
    pieces = Pieces(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(TEXTS, trainer)
    path = folder() / "bytelevel.json"
    pieces.save(str(path))
    return path


@functools.cache
def byte_fallback_file() -> Path:
    """A small vocabulary with byte fallback (the shape of Gemma's tokenizer.json), holding `</s>` as a plain word."""
    words = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{b:02X}>" for b in range(256)), "</s>"]
    words += ["▁", *"abcdefghijklmnopqrstuvwxyz0123456789,.:;-\n", "▁t", "he", "▁the"]
    vocabulary = {word: i for i, word in enumerate(words)}
    pieces = Pieces(
        models.BPE(vocabulary, [("▁", "t"), ("h", "e"), ("▁t", "he")], byte_fallback=True, unk_token="<unk>")
    )
    pieces.normalizer = None
    pieces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    pieces.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in words[:4]])
    path = folder() / "bytefallback.json"
    pieces.save(str(path))
    return path


TOKENIZER_FILES = {
    "sentencepiece": sentencepiece_file,
    "sentencepiece-dummy-prefix": functools.partial(sentencepiece_file, True),
    "byte-level": byte_level_file,
    "byte-fallback": byte_fallback_file,
}


@functools.cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(sentencepiece_file())


def statistics(robot: str, low: float = -2.0, high: float = 2.0) -> Statistics:
    """Quantiles, means and deviations that differ in every dimension."""

    def field(dim: int) -> dict[str, list[float]]:
        steps = np.arange(dim) / 10
        return {
            "mean": steps.tolist(),
            "std": (1 + steps).tolist(),
            "q01": (low - steps).tolist(),
            "q99": (high + steps).tolist(),
        }

    return Statistics.from_groups(robot, {"state": field(STATE_DIMS[robot]), "actions": field(ACTION_DIMS[robot])})


def processor(robot: str, **changes: Any) -> Processor:
    return Processor(preset(robot, **changes), tokenizer(), statistics(robot))


def picture(seed: int, height: int = 224, width: int = 224) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def message(robot: str) -> dict[str, Any]:
    """A complete message of a robot, as openpi's clients send it."""
    if robot == "libero":
        return {
            "observation/image": picture(0),
            "observation/wrist_image": picture(1),
            "observation/state": np.linspace(-1, 1, 8),
            "prompt": "pick up the Red_block",
        }
    if robot == "droid":
        return {
            "observation/exterior_image_1_left": picture(0),
            "observation/wrist_image_left": picture(1),
            "observation/joint_position": np.linspace(-1, 1, 7),
            "observation/gripper_position": np.array([0.5]),
            "prompt": "pick up the Red_block",
        }
    cameras = ("cam_high", "cam_left_wrist", "cam_right_wrist")
    return {
        "images": {name: picture(i).transpose(2, 0, 1) for i, name in enumerate(cameras)},
        "state": np.linspace(-0.5, 0.5, 14),
        "prompt": "pick up the Red_block",
    }


def lerobot_folder(folder: Path, **changes: Any) -> Path:
    """A folder's processor files as LeRobot lays them out."""
    norm_map = {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"} | changes.get("norm_map", {})
    tensors = {
        f"{feature}.{name}": np.arange(dim, dtype=np.float32) + shift
        for feature, dim in (("observation.state", 8), ("action", 7))
        for name, shift in (("mean", 0), ("std", 1), ("q01", -3), ("q99", 3), ("min", -4), ("max", 4))
    }
    tensors["observation.images.top.mean"] = np.zeros((3, 1, 1), np.float32)
    tensors["index.count"] = np.array([7], dtype=np.int64)
    pre, post = (
        "policy_preprocessor_step_2_normalizer.safetensors",
        "policy_postprocessor_step_0_unnormalizer.safetensors",
    )
    save_file(tensors | changes.get("pre", {}), folder / pre)
    save_file(tensors | changes.get("post", {}), folder / post)
    relative = changes.get("relative", {"enabled": False})
    steps = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "relative_actions_processor", "config": relative},
        {"registry_name": "normalizer_processor", "config": {"eps": 1e-8, "norm_map": norm_map}, "state_file": pre},
        {"registry_name": "tokenizer_processor", "config": {"max_length": 200}},
    ]
    back = [
        {"registry_name": "unnormalizer_processor", "config": {"norm_map": norm_map}, "state_file": post},
        {"registry_name": "absolute_actions_processor", "config": {"enabled": changes.get("absolute", False)}},
    ]
    (folder / "policy_preprocessor.json").write_text(json.dumps({"name": "policy_preprocessor", "steps": steps}))
    (folder / "policy_postprocessor.json").write_text(json.dumps({"name": "policy_postprocessor", "steps": back}))
    return folder
