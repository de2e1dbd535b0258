"""A user-supplied frozen network as the public feature map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.features.base import Features, PriorStatistics, declared, unit_norm


class Backbone(Features):
    """Wrap a frozen module: its output, flattened, less a public centre, scaled to unit norm.

    The module should be public: trained on data without anyone in the private data set, or on nothing. Its
    weights go into the fingerprint, so a release cannot be read with another one. As adlm cannot build it
    again from a certificate, give it to `fit(release, features=...)` and `Model.load(folder, features=...)`.

    Parameters
    ----------
    module : maps (n, *shape) in [0, 1] to (n, ...).
    shape : of one record.
    centre : public mean of its output, subtracted before scaling; None for no centring.
    provenance : `public` when no private record had a part in the module or the centre, else `private`: a
        release is then stamped and no epsilon is proved of it. There is no default.
    """

    def __init__(
        self, module: nn.Module, shape: tuple[int, ...], centre: Tensor | None = None, *, provenance: str = ""
    ) -> None:
        super().__init__()
        self.provenance = declared(provenance, f"the backbone {type(module).__name__}")
        self.module, self.shape = module.eval(), tuple(shape)
        for parameter in self.module.parameters():
            parameter.requires_grad_(False)
        with torch.inference_mode():
            self.width = self.module(torch.zeros(1, *self.shape)).flatten(1).shape[1]
        if centre is not None and centre.shape != (self.width,):
            raise UserError(f"the centre must have shape ({self.width},), got {tuple(centre.shape)}")
        self.register_buffer("centre", torch.zeros(self.width) if centre is None else centre.float())
        self.prior: PriorStatistics | None = None
        self.label = ""  # source of the module, if it was loaded by name

    centre: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width)."""
        self.module.eval()  # batch statistics would couple records
        return unit_norm(self.module(x).flatten(1) - self.centre)

    def spec(self) -> dict[str, Any]:
        """Describe the map; the weights are in the fingerprint."""
        kind = type(self.module)
        spec = {
            "name": "backbone",
            "module": f"{kind.__module__}.{kind.__qualname__}",
            "shape": list(self.shape),
            "width": self.width,
        }
        return spec | ({"encoder": self.label} if self.label else {})
