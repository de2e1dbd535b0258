"""Where passes over private records run: on this machine, or on a Ray cluster. The sums are the same."""

from adlm.engines.engine import ENGINES, Engine, open_engine

__all__ = ["ENGINES", "Engine", "open_engine"]
