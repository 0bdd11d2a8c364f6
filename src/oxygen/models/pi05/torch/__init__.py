"""π0.5 in PyTorch."""

from oxygen.models.pi05.torch.conditions import Modulation, StepConditions
from oxygen.models.pi05.torch.model import Pi05, build, initialize

__all__ = ["Modulation", "Pi05", "StepConditions", "build", "initialize"]
