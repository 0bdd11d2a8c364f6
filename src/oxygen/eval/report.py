"""An evaluation as tables for people and as rows for machines."""

from __future__ import annotations

from typing import Any

from oxygen.eval.closed_loop import Report, median_ms
from oxygen.eval.counts import Count


def tables(report: Report) -> str:
    """Markdown."""
    lines = ["| task | success | 95 % interval |", "|---|---|---|"]
    lines += [_line(name, found) for name, found in report.success.items()]
    lines.append(_line("**all**", report.total_success))
    if report.twin:
        lines += [
            "",
            "| with the opposite instruction | success of the scene's task | 95 % interval |",
            "|---|---|---|",
        ]
        lines += [_line(name, found) for name, found in report.twin.items()]
        lines.append(_line("**all**", report.total_twin))
    if report.texts:
        lines += ["", "| text (every frame) | exact | 95 % interval | exact where no rule is near its border |"]
        lines.append("|---|---|---|---|")
        lines += [f"{_line(kind, found)} {_share(clear)} |" for kind, (found, clear) in report.texts.items()]
    if report.yes_no:
        lines += ["", "| yes/no (as many yes as no in each topic) | right | 95 % interval |", "|---|---|---|"]
        lines += [_line(topic, found) for topic, found in sorted(report.yes_no.items())]
        lines.append(_line("**all**", report.total_yes_no))
    if report.open_answers:
        lines += ["", "| open questions | right | 95 % interval |", "|---|---|---|"]
        lines += [_line(topic, found) for topic, found in sorted(report.open_answers.items())]
    return "\n".join(lines)


def _line(name: str, found: Count) -> str:
    low, high = found.interval()
    return f"| {name} | {_share(found)} | {100 * low:.1f} to {100 * high:.1f} % |"


def _share(found: Count) -> str:
    return f"{found.hits}/{found.total} = {100 * found.rate:.1f} %"


def rows(report: Report, mode: str) -> list[dict[str, Any]]:
    """One row per thing counted; `what` is success, twin, text, clear, yes_no, open or loop."""
    found: list[dict[str, Any]] = []

    def add(what: str, counts: dict[str, Count]) -> None:
        found.extend({"what": what, "name": name, "mode": mode, **c.to_dict()} for name, c in counts.items())

    add("success", {**report.success, "all": report.total_success})
    if report.twin:
        add("twin", {**report.twin, "all": report.total_twin})
    add("text", {kind: exact for kind, (exact, _) in report.texts.items()})
    add("clear", {kind: clear for kind, (_, clear) in report.texts.items()})
    if report.yes_no:
        add("yes_no", {**report.yes_no, "all": report.total_yes_no})
    add("open", report.open_answers)
    loop = {"frames": report.num_frames, "frames_per_s": round(report.num_frames / max(report.loop_s, 1e-9), 2)}
    sums = {"actions_sha256": report.actions_sha256.hexdigest(), "texts_sha256": report.texts_sha256.hexdigest()}
    ready = {"action_ready_ms_p50": round(median_ms(report.action_ready_ms), 2)}
    found.append({"what": "loop", "mode": mode, **loop, **ready, **sums})
    return found
