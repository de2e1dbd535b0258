"""Private training on sensitive records by the Adaptive Laplace Mechanism."""

from adlm.version import __version__

__all__ = ["__version__"]
