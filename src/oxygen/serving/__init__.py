"""Doors to the engine: robots, people, programs and operators, behind one port."""
