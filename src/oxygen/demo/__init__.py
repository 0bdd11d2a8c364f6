"""The demo: a robot arm works, narrates and answers through the engine, and through the plain way once more."""

from __future__ import annotations
