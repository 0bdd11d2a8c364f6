"""`oxygen serve FOLDER`: a checkpoint behind one port, for robots, people, programs and operators."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from functools import partial
from pathlib import Path

from oxygen.checkpoint.shipped import SHIPPED
from oxygen.core.config import EngineConfig
from oxygen.runtime.presets import PRESETS, is_preset
from oxygen.serving import logs
from oxygen.serving.app import build_app
from oxygen.serving.open import open_engine
from oxygen.serving.server import Server, listen
from oxygen.serving.settings import MIB, ServeSettings

log = logging.getLogger("oxygen.serving")

DEVICE_FAILED = 3
"""Exit status after a fault of the device: a supervisor should start the server again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = f"a shipped name ({', '.join(SHIPPED)}), or a preset with random weights ({', '.join(PRESETS)})"
    parser.add_argument("folder", help=f"checkpoint folder, {names}")
    model = parser.add_argument_group("model")
    model.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: %(default)s)")
    model.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    model.add_argument("--robot", help="robot or openpi configuration, for folders that do not name theirs")
    model.add_argument(
        "--budget", default="idle", help="text per frame: fixed:K, rate:F or idle (default: %(default)s)"
    )
    model.add_argument("--max-contexts", type=int, default=40, help="frames whose context can be held at once")
    model.add_argument("--max-texts", type=int, default=40, help="texts that can decode at once")
    model.add_argument("--tail-len", type=int, default=256, help="tokens of the longest text with its question")
    doors = parser.add_argument_group("doors")
    doors.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    doors.add_argument("--port", type=int, default=8000, help="0 takes any free port (default: %(default)s)")
    doors.add_argument("--lerobot-port", type=int, help="open LeRobot's gRPC door too (its clients use 8080)")
    doors.add_argument("--starvla-port", type=int, help="open StarVLA's websocket door too (its clients use 10093)")
    doors.add_argument("--api-key", default=os.environ.get("OXYGEN_API_KEY"), help="or OXYGEN_API_KEY; for every door")
    doors.add_argument("--name", default="oxygen", help="model name of the OpenAI door (default: %(default)s)")
    doors.add_argument("--control-hz", type=float, help="rate at which the robot executes actions, told to clients")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-connections", type=int, default=256)
    limits.add_argument("--max-frame-mib", type=int, default=64, help="largest message of a robot")
    limits.add_argument("--max-session-texts", type=int, default=8, help="texts of one robot at a time")
    limits.add_argument("--max-frame-age", type=float, metavar="S", help="refuse frames that come later than this")
    limits.add_argument("--max-camera-skew", type=float, metavar="S", help="warn when cameras are further apart")
    limits.add_argument("--drain", type=float, default=10.0, metavar="S", help="patience with open work at a stop")
    notes = parser.add_argument_group("records")
    notes.add_argument("--record", type=Path, metavar="FILE", help="write everything that passes to an MCAP file")
    notes.add_argument("--rerun", action="store_true", help="show everything that passes in the Rerun viewer")
    notes.add_argument("--log-format", choices=("json", "text"), default="json")
    notes.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    notes.add_argument("--debug", action="store_true", help="send tracebacks to clients")


def run(args: argparse.Namespace) -> int:
    logs.set_up(args.log_format, args.log_level)
    settings = settings_from(args)
    listeners = listen(settings)  # a port that is taken is found out before the weights are read
    engine = open_engine(
        args.folder,
        device=args.device,
        dtype=args.dtype,
        robot=args.robot,
        config=EngineConfig(budget=args.budget),
        max_contexts=args.max_contexts,
        max_texts=args.max_texts,
        tail_len=args.tail_len,
    )
    try:
        announce = partial(_announce, settings, [listener.getsockname()[1] for listener in listeners], args.folder)
        server = Server(build_app(engine, settings), settings, announce)
        asyncio.run(server.serve(listeners))
    finally:
        engine.close()
    return DEVICE_FAILED if engine.fault is not None else 0


def settings_from(args: argparse.Namespace) -> ServeSettings:
    return ServeSettings(
        host=args.host,
        port=args.port,
        api_key=args.api_key,
        model_name=args.name,
        max_connections=args.max_connections,
        max_frame_bytes=args.max_frame_mib * MIB,
        max_session_texts=args.max_session_texts,
        max_frame_age_s=args.max_frame_age,
        max_camera_skew_s=args.max_camera_skew,
        exit_on_fault=True,
        control_hz=args.control_hz,
        lerobot_port=args.lerobot_port,
        starvla_port=args.starvla_port,
        record=args.record,
        rerun=args.rerun,
        drain_s=args.drain,
        debug=args.debug,
    )


def _announce(settings: ServeSettings, ports: list[int], folder: str) -> None:
    if not settings.is_loopback and settings.api_key is None:
        log.warning("listening on %s without an API key: everybody who reaches it can use the robot", settings.host)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    doors = f"dashboard and API http://{host}:{ports[0]}, robots ws://{host}:{ports[0]}"
    if settings.lerobot_port:
        doors += f", LeRobot grpc://{host}:{settings.lerobot_port}"
    if len(ports) > 1:
        doors += f", StarVLA ws://{host}:{ports[1]}"
    weights = " (random weights: texts and actions mean nothing)" if is_preset(folder) else ""
    print(f"oxygen serves {folder}{weights}: {doors}", flush=True)
