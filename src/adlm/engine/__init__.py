"""Engines that run passes over private records: this machine, or a Ray cluster. The sums are the same."""

from __future__ import annotations

from adlm.engine.local import ENGINES, Engine, open_engine

__all__ = ["ENGINES", "Engine", "open_engine"]
