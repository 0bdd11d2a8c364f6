"""How good a checkpoint is on the simulated arm: success in closed loop, and whether what it says is true."""

from __future__ import annotations
