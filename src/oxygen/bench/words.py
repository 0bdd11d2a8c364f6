"""What the figures are called and what they mean: the heads of all tables, and the legends below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WORDS: dict[str, tuple[str, str]] = {
    "mode": ("mode", ""),
    "label": ("variant", "which variant of the mode"),
    "workload": ("workload", "how texts arrive; long texts' share, and the tokens of short and long ones"),
    "k": ("k", "decode rounds a frame: tokens that each live text may gain in one frame"),
    "new_tokens": ("N", "tokens of a text"),
    "num_steps": ("S", "flow steps of an action chunk"),
    "frame_ms": ("frame ms", "from a frame's arrival to the end of its work, median"),
    "frame_ms_spread": ("spread", "of the column before: 90th less 10th percentile"),
    "frame_ms_mean": ("mean ms", "mean frame time: frames differ here, the sum counts"),
    "frame_ms_p50": ("median ms", "median frame time"),
    "ideal_frame_ms": ("ideal ms", "the frame made of its stages' times, measured alone in the same run"),
    "ideal_share": ("of ideal", "ideal over frame time"),
    "floor_ms": ("floor ms", "the frame made of its stages' floors: no code can be quicker on this machine"),
    "action_ready_ms_p50": ("ready ms", "from a frame's arrival to its actions, median"),
    "action_ready_ms_p50_spread": ("ready spread", "of ready ms: 90th less 10th percentile"),
    "action_ready_ms_p99": ("ready p99", "the same, 99th percentile (of few frames: about the slowest)"),
    "action_hz": ("H/T", "actions per second: horizon over frame time, the paper's action frequency"),
    "frames_per_s": ("frames/s", "frames per second"),
    "tokens_per_s": ("tok/s", "tokens of all texts per second"),
    "ttft_ms": ("first tok ms", "from a text's frame to its first token"),
    "mean_batch": ("batch", "texts that decoded together in a round, mean as counted"),
    "steady_batch": ("N/k", "the batch that a steady state has"),
    "answer_age_frames": ("age frames", "frames between the one that a text is about and its last token"),
    "answer_age_s": ("age s", "the same in seconds"),
    "management_share": ("mgmt", "share of a frame outside the model: planning, bookkeeping, delivery"),
    "management_ms": ("mgmt ms", "time of a frame outside the model"),
    "management_ms_spread": ("mgmt spread", "of mgmt ms: 90th less 10th percentile"),
    "speedup": ("x", "speed-up: the baseline's frame time over this one's"),
    "prefill_ms": ("prefill", "ms of one prefill, vision included"),
    "vision_ms": ("vision", "ms of the pictures' tower, a part of prefill"),
    "act_ms": ("act", "ms of one action chunk, all flow steps"),
    "round_ms": ("round", "ms of one decode round of the batch"),
    "alone_round_ms": ("round of 1", "ms of one decode round of a single text"),
    "isolated_ms": ("isolated", "ms of a frame in which every task prefills for itself"),
    "shared_ms": ("shared", "ms of a frame with one prefill, its text decoded at once"),
    "oxygen_ms": ("OxyGen", "ms of a frame with one prefill and k rounds of all live texts"),
    "reuse_share": ("reuse", "(isolated - shared) / isolated: what one prefill instead of two saves"),
    "batching_share": ("batching", "(shared - OxyGen) / isolated: what batching texts of several frames saves"),
    "completion_s": ("complete s", "from a text's frame to its last token"),
    "expected_completion_s": ("ceil(N/k) T", "the frames that a text takes, times the frame time, in seconds"),
    "live_texts": ("live texts", "texts alive"),
    "texts_per_frame": ("texts/frame", "texts that begin with a frame, mean"),
    "plan_ms": ("plan", "ms: choosing the step's work, admission, rows freed"),
    "deliver_ms": ("deliver", "ms: handing the actions out"),
    "rounds_ms": ("rounds", "ms: taking tokens in between decode rounds"),
    "commit_ms": ("commit", "ms: applying results to the requests"),
    "deliver_text_ms": ("deliver text", "ms: handing text out"),
    "rest_ms": ("rest", "ms: submitting, ticket, step record"),
    "kv_bytes_copied": ("KV copied", "bytes of K and V that verbs moved"),
    "context_rows": ("rows", "context rows: frames whose K and V are kept at once"),
    "peak_mib": ("peak MiB", "largest memory of a process of its own (resident on a CPU, allocated on a GPU)"),
    "loaded_mib": ("loaded MiB", "resident memory once the model was open"),
    "weights_mib": ("weights MiB", "weights, computed from the sizes"),
    "contexts_mib": ("contexts MiB", "storage of the context rows, computed"),
    "over_isolated_mib": ("over isolated", "peak MiB less that of isolated"),
    "power_w": ("W", "mean power (RAPL or NVML); - without a meter"),
    "joules_per_frame": ("J/frame", "energy of a frame; - without a meter"),
    "cycle": ("cycle", "repetition of the fluctuating load"),
    "live_max": ("most live", "most texts alive in the cycle"),
    "tokens": ("tokens", "tokens of all texts in the cycle"),
    "resident_bytes": ("resident bytes", "memory of the process at the cycle's end"),
    "device_bytes": ("device bytes", "allocated on a GPU at the cycle's end"),
    "budget": ("budget", "fixed:k rounds, the most that keep rate:F frames a second, or idle: until the next frame"),
    "camera_hz": ("camera Hz", "frames that the camera delivers per second"),
    "replaced": ("replaced", "frames dropped because a newer one came before they began"),
    "late_share": ("late", "share of actions ready later than one camera period"),
    "texts_done": ("texts done", "texts completed"),
    "texts_refused": ("refused", "texts refused because too many were alive"),
    "rounds_per_frame": ("rounds/frame", "decode rounds a frame, mean"),
    "stage": ("stage", "decode_8: one round of 8 texts"),
    "measured_ms": ("measured ms", "median of the stage by itself"),
    "measured_ms_spread": ("spread", "of measured ms: 90th less 10th percentile"),
    "compute_floor_ms": ("compute floor", "ms: operations over the measured rate of matrix products"),
    "bandwidth_floor_ms": ("bandwidth floor", "ms: bytes that must be read over the measured bandwidth"),
    "achieved_share": ("achieved", "the higher floor over the measured time"),
    "tflops_per_s": ("Tflop/s", "operations done per second, in 1e12"),
    "gbytes_per_s": ("GB/s", "bytes that had to be read, per second"),
    "ratio_to_one": ("x one text", "a round's time over that of a single text"),
    "code": ("code", "whose code"),
    "version": ("version", "its version"),
    "action_difference": ("action diff", "largest difference of its actions from ours, same weights, frame and noise"),
    "robots": ("robots", "robots at once"),
    "in_process_ms_p50": ("in process ms", "a call of the engine, median"),
    "websocket_ms_p50": ("websocket ms", "the same through the server's door, median"),
    "added_ms_p50": ("added ms", "what the door adds, median"),
    "added_ms_p99": ("added p99", "what the door adds, 99th percentile"),
    "slowest_robot_ms_p50": ("slowest ms", "ready ms of the slowest robot, median"),
    "fairness": ("fairness", "Jain's index of the frames that the robots had answered: 1 is even"),
    "num_experts": ("E", "experts: the action experts and the language expert"),
    "prompts": ("prompts", "identical for all experts, or a tail of its own for each"),
    "bench": ("bench", ""),
    "status": ("status", "done, kept (from an earlier run) or failed"),
    "seconds": ("s", "wall time, opening included"),
    "expected_s": ("expected s", "what it said before it began"),
    "rows": ("rows", "rows of its table"),
    "load_during": ("load", "cores that other programs used meanwhile"),
}
"""A figure's key in rows and files -> its head in tables, and its meaning (empty: the word says it)."""

MODES = {
    "isolated": "every task prefills for itself, one after another; the text is decoded at once, alone",
    "parallel": "the same in two processes side by side, one for actions, one for texts",
    "shared": "one prefill for all tasks; the text is decoded at once, alone, before the next frame",
    "upper_bound": "one prefill, k tokens, the rest of the text dropped: no text is ever complete",
    "oxygen": "one prefill; all live texts, of any frame, decode in one batch, k rounds a frame",
}

FRAME = (
    *("mode", "k", "frame_ms", "frame_ms_spread", "ideal_frame_ms", "action_ready_ms_p50", "action_ready_ms_p99"),
    *("action_hz", "frames_per_s", "tokens_per_s", "ttft_ms", "mean_batch", "steady_batch", "answer_age_frames"),
    *("answer_age_s", "management_share", "speedup"),
)
"""Columns of the printed tables that several benchmarks share."""

STEADY = {
    *("frame_ms", "action_ready_ms_p50", "prefill_ms", "vision_ms", "act_ms", "round_ms", "measured_ms"),
    *("isolated_ms", "frame_ms_mean"),
}
"""Figures that are about the same in every frame of a point: a large spread means that the run was disturbed."""


def filled(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those of the columns in which any row has a figure."""
    return [key for key in columns if not rows or any(row.get(key) is not None for row in rows)]


def heading(key: str) -> str:
    return WORDS[key][0]


def legend(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for every column whose head does not say it all, and for every mode in the rows."""
    said = [f"{heading(key)}: {WORDS[key][1]}" for key in columns if WORDS[key][1]]
    modes = {row["mode"] for row in rows if "mode" in row}
    return [f"{mode}: {meaning}" for mode, meaning in MODES.items() if mode in modes] + said


def cautions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warn of figures that are smaller than their spread, and of differences that are smaller than theirs."""
    found = []
    for key in sorted(STEADY):
        wide = [name_of(r) for r in rows if (r.get(key) or 0) < (r.get(f"{key}_spread") or 0)]
        if wide:
            found.append(f"{heading(key)}: the spread is larger than the value itself: {'; '.join(wide)}")
    doubtful, base = [], None
    for row in rows:
        is_baseline = row.get("speedup") == 1 and row.get("mode", "isolated") == "isolated"
        if is_baseline:  # of the rows that follow
            base = row
        elif "workload" in row:
            continue  # its frames differ on purpose
        elif base is not None and row.get("speedup") is not None and is_within_spread(row, base):
            doubtful.append(f"{name_of(row)} ({row['speedup']} x)")
    if doubtful:
        found.append(f"no difference from the baseline beyond the spread of the two: {'; '.join(doubtful)}")
    return [f"caution: {text}" for text in found]


def is_within_spread(row: Mapping[str, Any], base: Mapping[str, Any], key: str = "frame_ms") -> bool:
    """Whether two rows differ by less than the larger of their spreads."""
    gap = abs((row.get(key) or 0) - (base.get(key) or 0))
    return bool(gap < max(row.get(f"{key}_spread") or 0, base.get(f"{key}_spread") or 0))


def name_of(row: Mapping[str, Any]) -> str:
    """A row in words: its mode or stage, and the point where it stands."""
    names = (row[key] for key in ("workload", "stage", "code", "mode", "budget") if row.get(key))
    points = (f"{heading(key)} {row[key]}" for key in ("num_experts", "new_tokens", "k", "num_steps") if row.get(key))
    return ", ".join((*names, *points))
