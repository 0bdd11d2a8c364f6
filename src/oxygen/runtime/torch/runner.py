"""TorchRunner: the three verbs of core.plan.Runner on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oxygen.core.errors import InvalidInput, RequestFault
from oxygen.core.plan import ActItem, AfterRound, DecodeItem, ExpertLimits, PrefillItem, RunnerLimits
from oxygen.core.tasks import Sampling
from oxygen.layers.experts import ExpertShape
from oxygen.layers.native.build import state
from oxygen.runtime.torch.act import run_chunks
from oxygen.runtime.torch.attention import Scratch
from oxygen.runtime.torch.decode import Decode
from oxygen.runtime.torch.graphs import Graphs
from oxygen.runtime.torch.prefill import Prefill
from oxygen.runtime.torch.store import Store, StoreShape
from oxygen.runtime.torch.timings import Timings


class TorchRunner:
    """Holds a model that is ready for inference, and the storage of contexts and tails. One thread calls it.

    Every verb may be called again with the same items: it writes the same values to the same places. So after a
    RequestFault the caller drops that request's items and calls again with the others.

    model: of a family under models/ (see models/pi05). poison_freed: fill freed rows with NaN (tests). graphs: `off`,
    `plain` or `cuda`, see graphs.py. lookahead: launch a decode round before the tokens of the last one were read.
    forbidden_ids: [vocab_size] bool, true for tokens that no text may contain.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_contexts: int,
        max_texts: int,
        context_len: int,
        tail_len: int,
        eos_ids: Sequence[int] = (1,),
        forbidden_ids: np.ndarray | None = None,
        poison_freed: bool = False,
        graphs: str = "off",
        lookahead: bool = False,
    ) -> None:
        spec = model.spec
        self._model = model
        self._poison_freed = poison_freed
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        shape = store_shape(spec, max_contexts, max_texts, context_len, tail_len)
        self.store = Store(shape, self.dtype, self.device)
        self.timings = Timings(self.device)
        self._graphs = Graphs(graphs)
        self._scratch = Scratch(self.dtype, self.device)
        shared = (model, self.store, self._scratch, self._graphs, self.timings)
        self._prefill = Prefill(*shared)
        self._decode = Decode(*shared, self._mask(forbidden_ids), lookahead, eos_ids)
        self._experts = dict(model.experts)
        shapes = [expert.shape for expert in self._experts.values()]
        experts = tuple(ExpertLimits(s.name, s.horizon, s.action_dim, s.num_steps) for s in shapes)
        self._limits = RunnerLimits(
            max_contexts=max_contexts,
            max_texts=max_texts,
            context_len=context_len,
            tail_len=tail_len,
            horizon=experts[0].horizon if experts else 1,
            action_dim=experts[0].action_dim if experts else 1,
            num_steps=experts[0].num_steps if experts else 1,
            vocab_size=spec.vocab_size,
            eos_ids=tuple(eos_ids),
            bytes_per_context=shape.context_bytes(self.dtype),
            experts=experts,
        )
        if poison_freed:
            self.store.poison(range(max_contexts), range(max_texts))

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    @torch.inference_mode()
    def prefill(self, items: Sequence[PrefillItem]) -> None:
        """Write each item's context into its row, and keep for its readers of hidden states what they read, until the
        next prefill or decode. Pictures of one frame key are embedded once per call, and once more for contexts of the
        same frame in the next call.
        """
        for item in items:
            self._check_row(item.request_id, item.context_row)
        self._prefill.run(items)

    @torch.inference_mode()
    def act(self, items: Sequence[ActItem]) -> list[np.ndarray]:
        """Each item's chunk, [horizon, action_dim] float32, in the model's units. Contexts are read, not changed."""
        for item in items:
            self._check_chunk(item)
        if not items:
            return []
        with self.timings.stage("act"):
            return run_chunks(self._experts, self.store, self._prefill.features, items, self._scratch, self._graphs)

    @torch.inference_mode()
    def decode(self, items: Sequence[DecodeItem], rounds: int, after_round: AfterRound) -> None:
        """Give each text up to `rounds` tokens. The step's pictures and features are forgotten."""
        for item in items:
            self._check_row(item.request_id, item.context_row)
            if not 0 <= item.tail_row < self._limits.max_texts:
                raise RequestFault(item.request_id, f"tail row {item.tail_row} is not among {self._limits.max_texts}")
        self._prefill.forget_step()
        self._decode.run(items, rounds, after_round)

    @torch.inference_mode()
    def forget(self, context_rows: Sequence[int], tail_rows: Sequence[int]) -> None:
        """These rows are free. Nothing is cleared (taking a row does that) unless freed rows are to be poisoned."""
        self._prefill.forget_rows(context_rows)
        if self._poison_freed:
            self.store.poison(context_rows, tail_rows)

    def close(self) -> None:
        """Give the memory of the storage back. The runner is of no use afterwards."""
        del self.store, self._prefill, self._decode, self._model, self._experts

    def forbid(self, forbidden_ids: np.ndarray | None) -> None:
        """Set the vocabulary mask: [vocab_size] bool, true for tokens that no text may contain."""
        self._decode.forbidden = self._mask(forbidden_ids)

    def warm_up(self) -> None:
        """Run every stage once on made-up input (rows 0), so that no request pays for first-time work. Rows are free
        after.
        """
        limits = self._limits
        inputs = self._model.example(limits.context_len)
        for _ in range(2):  # captured shapes are made when they come the second time
            chunks = [self._made_up_chunk(expert.shape, inputs.num_tokens) for expert in self._experts.values()]
            readers = tuple((item.expert, item.tail_ids) for item in chunks)
            self.prefill([PrefillItem(0, 0, inputs, frame_key=-1, readers=readers)])
            self.act(chunks)
            for tail in range(min(2, limits.max_texts)):
                rounds = min(2, limits.tail_len)
                item = DecodeItem(0, 0, 0, inputs.num_tokens, tail, 0, (), 0, rounds, Sampling())
                self.decode([item], rounds, lambda tokens: [True] * len(tokens))
            self._prefill.forget_step()
        self.forget([0], list(range(min(2, limits.max_texts))))
        self.timings.reset()

    def _made_up_chunk(self, shape: ExpertShape, context_len: int) -> ActItem:
        noise = np.zeros((shape.horizon, shape.action_dim), dtype=np.float32)
        tail = () if shape.reads.token_id is None else (shape.reads.token_id,) * shape.reads.num_tokens
        state = np.zeros(shape.state_dim, dtype=np.float32) if shape.state_dim else None
        return ActItem(0, 0, 0, context_len, shape.name, shape.num_steps, noise, tail, state)

    def info(self) -> dict[str, Any]:
        """What this runner runs on: plain values for metadata and benchmarks."""
        return {
            "runtime": "torch",
            "torch": torch.__version__,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "graphs": self._graphs.state(),
            "kernels": state() if self.device.type == "cpu" else "for CPUs only",
            "lookahead": self._decode.lookahead,
            "store_bytes": self.store.num_bytes(),
            "bytes_per_context": self._limits.bytes_per_context,
            "num_parameters": self._model.spec.num_parameters(),
        }

    def _mask(self, forbidden_ids: np.ndarray | None) -> Tensor | None:
        """Additive mask [vocab_size] float32."""
        if forbidden_ids is None:
            return None
        forbidden = np.asarray(forbidden_ids)
        if forbidden.shape != (self._model.spec.vocab_size,) or forbidden.dtype != np.bool_:
            expected = f"[{self._model.spec.vocab_size}] bool"
            raise InvalidInput("forbidden_ids", expected, f"{list(forbidden.shape)} {forbidden.dtype}")
        mask = np.where(forbidden, np.float32(-np.inf), np.float32(0))
        return torch.from_numpy(mask).to(self.device)

    def _check_row(self, request_id: int, row: int) -> None:
        if not 0 <= row < self._limits.max_contexts:
            raise RequestFault(request_id, f"context row {row} is not among {self._limits.max_contexts}")

    def _check_chunk(self, item: ActItem) -> None:
        self._check_row(item.request_id, item.context_row)
        if not 1 <= item.context_len <= self._limits.context_len:
            raise RequestFault(item.request_id, f"context length {item.context_len} of {self._limits.context_len}")
        if item.expert not in self._experts:
            known = ", ".join(self._experts) or "none"
            raise RequestFault(item.request_id, f"the action experts of this model are {known}, not {item.expert!r}")
        shape = self._experts[item.expert].shape
        if shape.reads.kv and item.tail_ids:
            raise RequestFault(item.request_id, f"expert {item.expert} takes no private tokens")
        if not shape.reads.kv and (item.context_row, item.expert) not in self._prefill.features:
            raise RequestFault(item.request_id, f"the context was not prefilled for expert {item.expert} in this step")
        if item.noise.shape != (shape.horizon, shape.action_dim):
            expected = f"[{shape.horizon}, {shape.action_dim}]"
            raise RequestFault(item.request_id, f"noise: expected {expected}, got {list(item.noise.shape)}")
        if shape.state_dim and (item.state is None or item.state.shape != (shape.state_dim,)):
            got = "none" if item.state is None else list(item.state.shape)
            raise RequestFault(item.request_id, f"state: expert {item.expert} takes [{shape.state_dim}], got {got}")
        if item.num_steps < 1:
            raise RequestFault(item.request_id, f"num_steps must be at least 1, got {item.num_steps}")


def store_shape(spec: Any, max_contexts: int, max_texts: int, context_len: int, tail_len: int) -> StoreShape:
    """The storage that a model of these sizes needs."""
    return StoreShape(
        num_layers=spec.trunk.depth,
        kv_heads=spec.trunk.num_kv_heads,
        head_dim=spec.trunk.head_dim,
        width=spec.trunk.width,
        max_contexts=max_contexts,
        max_texts=max_texts,
        context_len=context_len,
        tail_len=tail_len,
    )
