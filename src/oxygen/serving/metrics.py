"""Counters, gauges and histograms in Prometheus' text format. Small on purpose; label values come from fixed sets."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping

Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]

MS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
AGE_BUCKETS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_MAX_SERIES = 1000


class Counter:
    def __init__(self, name: str, text: str, labels: Labels = ()) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}
        self._lock = threading.Lock()

    def add(self, *labels: str, by: float = 1.0) -> None:
        with self._lock:
            if labels not in self._values and len(self._values) >= _MAX_SERIES:
                labels = ("other",) * len(self.labels)
            self._values[labels] = self._values.get(labels, 0.0) + by

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0.0)

    def items(self) -> list[tuple[Labels, float]]:
        return sorted(self._values.items())

    @property
    def total(self) -> float:
        return sum(self._values.values())

    def lines(self) -> Iterable[str]:
        yield from _head(self.name, self.text, "counter")
        for labels, value in sorted(self._values.items()):
            yield f"{self.name}{_labels(self.labels, labels)} {value:g}"


class Gauge:
    """A value read when it is asked for."""

    def __init__(self, name: str, text: str, labels: Labels, read: Callable[[], Samples]) -> None:
        self.name, self.text, self.labels, self._read = name, text, labels, read

    def lines(self) -> Iterable[str]:
        yield from _head(self.name, self.text, "gauge")
        for labels, value in self._read():
            yield f"{self.name}{_labels(self.labels, labels)} {value:g}"


class Histogram:
    def __init__(self, name: str, text: str, labels: Labels = (), buckets: tuple[float, ...] = MS_BUCKETS) -> None:
        self.name, self.text, self.labels, self._buckets = name, text, labels, buckets
        self._series: dict[Labels, list[float]] = {}
        self._lock = threading.Lock()

    def observe(self, value: float, *labels: str) -> None:
        with self._lock:
            series = self._series.setdefault(labels, [0.0] * (len(self._buckets) + 2))
            series[bisect_left(self._buckets, value)] += 1
            series[-1] += value

    def lines(self) -> Iterable[str]:
        yield from _head(self.name, self.text, "histogram")
        for labels, series in sorted(self._series.items()):
            total = 0.0
            for bound, count in zip((*map(str, self._buckets), "+Inf"), series[:-1], strict=True):
                total += count
                yield f"{self.name}_bucket{_labels((*self.labels, 'le'), (*labels, bound))} {total:g}"
            yield f"{self.name}_sum{_labels(self.labels, labels)} {series[-1]:g}"
            yield f"{self.name}_count{_labels(self.labels, labels)} {total:g}"


class ServerMetrics:
    """Everything the server itself counts. The engine's own figures are joined as gauges (see `engine_gauges`)."""

    def __init__(self) -> None:
        self.frames = Counter("oxygen_frames_total", "Frames taken in, by door.", ("door",))
        self.actions = Counter("oxygen_actions_total", "Action chunks delivered, by door.", ("door",))
        self.refusals = Counter("oxygen_refusals_total", "Requests refused or failed, by reason.", ("reason",))
        self.warnings = Counter("oxygen_warnings_total", "Suspicious frames, by kind.", ("kind",))
        self.texts = Counter("oxygen_texts_total", "Texts ended, by kind and how.", ("kind", "finish_reason"))
        self.tokens = Counter("oxygen_text_tokens_total", "Tokens of ended texts.")
        self.connections = Counter("oxygen_connections_total", "Connections accepted, by door.", ("door",))
        self.missed = Counter(
            "oxygen_missed_deadlines_total", "Frames or texts that were given up or came too late.", ("what",)
        )
        self.repeated = Counter(
            "oxygen_repeated_pictures_total", "Pictures equal to the one before while the state changed."
        )
        self.dropped_events = Counter("oxygen_dropped_events_total", "Events lost by listeners that did not read.")
        self.action_ready = Histogram(
            "oxygen_action_ready_ms", "From a frame's arrival to its actions' departure, ms.", ("door",)
        )
        self.submit = Histogram("oxygen_submit_ms", "Reading, checking and encoding a frame, ms.")
        self.stage = Histogram("oxygen_stage_ms", "Stages of a step, ms.", ("stage",))
        self.text_age = Histogram(
            "oxygen_text_age_seconds", "Age of what a text describes at its end.", ("kind",), AGE_BUCKETS
        )
        self.ttft = Histogram(
            "oxygen_text_first_token_ms", "From a text's submission to its first piece, ms.", ("kind",)
        )
        self._gauges: list[Gauge] = []

    def gauge(self, name: str, text: str, read: Callable[[], Samples], labels: Labels = ()) -> None:
        self._gauges.append(Gauge(name, text, labels, read))

    def render(self) -> str:
        own = [m for m in vars(self).values() if isinstance(m, Counter | Histogram)]
        lines = [line for metric in [*own, *self._gauges] for line in metric.lines()]
        return "\n".join(lines) + "\n"

    def as_dict(self) -> Mapping[str, float]:
        """Totals by name, for the dashboard."""
        return {m.name: m.total for m in vars(self).values() if isinstance(m, Counter)}


def _head(name: str, text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    quoted = (str(v).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for v in values)
    return "{" + ",".join(f'{n}="{v}"' for n, v in zip(names, quoted, strict=True)) + "}"
