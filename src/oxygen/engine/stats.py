from oxygen.tickets.record import EngineStats, StepRecord

__all__ = ["EngineStats", "StepRecord"]
