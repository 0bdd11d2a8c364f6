"""The light client of an OxyGen server: observations in, action chunks and text out."""

from oxygen_client.aio import AsyncRobotClient
from oxygen_client.chunks import ActionBuffer
from oxygen_client.client import RobotClient, Text
from oxygen_client.errors import (
    ClientError,
    ConnectionLost,
    NoAnswer,
    ServerError,
    Stale,
    Superseded,
    TakenOver,
)
from oxygen_client.messages import Chunk, TextEvent
from oxygen_client.text import AsyncText

__all__ = [
    "ActionBuffer",
    "AsyncRobotClient",
    "AsyncText",
    "Chunk",
    "ClientError",
    "ConnectionLost",
    "NoAnswer",
    "RobotClient",
    "ServerError",
    "Stale",
    "Superseded",
    "TakenOver",
    "Text",
    "TextEvent",
]
