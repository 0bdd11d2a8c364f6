"""Liveness, readiness, metrics: what a supervisor and a scraper read.

Alive means that the event loop answers and the device has not failed. Ready means more: warmed up, not stopping,
and the step at work is not stuck. So a dead or hanging engine is never green.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from oxygen.serving.gateway import Gateway
from oxygen.tickets.record import EngineStats


def condition(gateway: Gateway) -> tuple[str, str]:
    """One word and one sentence: ready, warming, stopping, failed, closed or stuck."""
    stats = gateway.engine.stats()
    if stats.status == "failed":
        return "failed", "the device failed; the server must be restarted"
    if gateway.is_draining:
        return "stopping", "the server is stopping"
    if stats.status == "ready" and stats.current_step_s > gateway.settings.stuck_after_s:
        return "stuck", f"the step at work has taken {stats.current_step_s:.0f} s"
    sentences = {"ready": "frames are answered", "warming": "the model is loading or warming up"}
    return stats.status, sentences.get(stats.status, f"the engine is {stats.status}")


async def healthz(request: Request) -> Response:
    """openpi's health check: a short OK while the process is of use."""
    word, sentence = condition(request.app.state.gateway)
    if word in ("failed", "closed"):
        return PlainTextResponse(f"{word}: {sentence}\n", status_code=503)
    return PlainTextResponse("OK\n")


async def livez(request: Request) -> Response:
    return _answer(request, bad=("failed", "closed"))


async def readyz(request: Request) -> Response:
    return _answer(request, bad=("failed", "closed", "warming", "stopping", "stuck"))


def _answer(request: Request, bad: tuple[str, ...]) -> Response:
    word, sentence = condition(request.app.state.gateway)
    headers = {"Retry-After": "1"} if word == "warming" else None
    body = {"status": word, "message": sentence}
    return JSONResponse(body, status_code=503 if word in bad else 200, headers=headers)


async def metrics(request: Request) -> Response:
    text = request.app.state.gateway.metrics.render()
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def register_gauges(gateway: Gateway) -> None:
    """The engine's own figures, read when they are asked for."""
    metrics, engine = gateway.metrics, gateway.engine

    def one(value: Any) -> list[tuple[tuple[str, ...], float]]:
        return [((), float(value))]

    def recent() -> list[tuple[tuple[str, ...], float]]:
        figures = engine.stats().recent.items()
        return [((name, q), value) for name, pair in figures for q, value in zip(("0.5", "0.99"), pair, strict=True)]

    def counts() -> list[tuple[tuple[str, ...], float]]:
        return [((name,), float(value)) for name, value in sorted(engine.stats().counts.items())]

    metrics.gauge("oxygen_ready", "1 when frames are answered.", lambda: one(condition(gateway)[0] == "ready"))
    metrics.gauge("oxygen_sessions", "Sessions known.", lambda: one(len(gateway.sessions)))
    metrics.gauge("oxygen_live_texts", "Texts decoding.", lambda: one(engine.stats().live_texts))
    metrics.gauge("oxygen_waiting_texts", "Texts waiting for a row.", lambda: one(engine.stats().waiting_texts))
    metrics.gauge("oxygen_context_rows", "Context rows in use.", lambda: one(engine.stats().context_rows))
    metrics.gauge("oxygen_tail_rows", "Tail rows in use.", lambda: one(engine.stats().tail_rows))
    metrics.gauge("oxygen_current_step_seconds", "Age of the step at work.", lambda: one(engine.stats().current_step_s))
    metrics.gauge("oxygen_engine_recent", "Recent figures of the engine, by quantile.", recent, ("figure", "quantile"))
    metrics.gauge("oxygen_engine_events", "Events counted by the engine since its start.", counts, ("event",))


def stats_dict(stats: EngineStats) -> dict[str, Any]:
    """The engine's figures for the dashboard, in milliseconds where they are times."""
    recent = {name: {"p50": pair[0], "p99": pair[1]} for name, pair in stats.recent.items()}
    return {
        "status": stats.status,
        "budget": stats.budget,
        "steps": stats.steps,
        "live_texts": stats.live_texts,
        "waiting_texts": stats.waiting_texts,
        "context_rows": stats.context_rows,
        "tail_rows": stats.tail_rows,
        "counts": dict(stats.counts),
        "recent": recent,
    }
