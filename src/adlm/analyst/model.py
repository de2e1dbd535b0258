"""A trained model: public features, a head, and the certificate of the release it was trained on.

On disk it is a folder with `model.safetensors`, `model.json` and the release's `certificate.json`, byte for
byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from adlm.analyst.networks import build as build_network
from adlm.analyst.normalisation import TOGETHER, by_batch, even_parts
from adlm.artefact import canonical, new_folder, read_json, sha256
from adlm.errors import UserError
from adlm.public.features import Features, checked
from adlm.release import CERTIFICATE, TENSORS, Certificate, describe, read_tensors

SCHEMA = 1
WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
BATCH = 512  # scaled records that a network takes at once

AVERAGES, TOGETHER_STATISTICS = "averages of training", "of the records asked about together"


@dataclass(frozen=True)
class Model:
    """A classifier of raw records.

    Attributes
    ----------
    certificate : of the release; training does not change it.
    head : module from features (or from scaled records, when `features` is None) to logits.
    architecture : how to build the head again: {"kind": "linear"}, or {"kind": "network", "name": ...,
        "shape": ...}; one of kind "custom" must be given to `load`.
    features : the public feature map, or None for a network that takes scaled records themselves.
    training : what was done, in JSON values; it says nothing of the records.
    """

    certificate: Certificate
    head: nn.Module
    architecture: Mapping[str, Any]
    features: Features | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits."""
        return self.certificate.domain.classes

    def logits(self, x: npt.ArrayLike, *, device: str = "cpu") -> Tensor:
        """Return (n, M) logits of raw records, in the units of the domain.

        A network that was trained on noisy records is asked about `TOGETHER` records or more at a time with
        the min-max and batch statistics of those records; `training["statistics"]` says so. Asked about
        fewer it has the averages over noisy records, which fit clean ones badly.
        """
        domain = self.certificate.domain
        records = np.asarray(x)
        head = self.head.to(device).eval()
        features = None if self.features is None else self.features.to(device).eval()
        parts, step = [], BATCH if features is None else features.batch
        together = self.training.get("statistics") == TOGETHER_STATISTICS
        with torch.inference_mode():
            for part in even_parts(len(records), step):
                z = torch.from_numpy(domain.scale(records[part])).to(device)
                z = z if features is None else features(z)
                with by_batch(head, together and len(z) >= TOGETHER):
                    parts.append(head(z).float().cpu())
        return torch.cat(parts)

    def probabilities(self, x: npt.ArrayLike, *, device: str = "cpu") -> npt.NDArray[np.float64]:
        """Return (n, M) class probabilities of raw records."""
        return self.logits(x, device=device).double().softmax(1).numpy()

    def predict(self, x: npt.ArrayLike, *, device: str = "cpu") -> npt.NDArray[np.int64]:
        """Return (n,) class codes of raw records."""
        return self.logits(x, device=device).argmax(1).numpy()

    def save(self, folder: Path | str) -> None:
        """Write the model by one rename."""
        weights = {n: t.detach().cpu().contiguous() for n, t in sorted(self.head.state_dict().items())}
        body = {
            "schema": SCHEMA,
            "architecture": dict(self.architecture),
            "on_features": self.features is not None,
            "training": dict(self.training),
            "weights": describe(weights),
        }
        with new_folder(Path(folder), what="model") as temporary:
            (temporary / WEIGHTS).write_bytes(save_tensors(weights))
            (temporary / DESCRIPTION).write_bytes(canonical(body | {"digest": sha256(canonical(body))}))
            (temporary / CERTIFICATE).write_bytes(canonical(self.certificate.to_dict()))

    @classmethod
    def load(
        cls, folder: Path | str, network: nn.Module | None = None, features: Features | None = None
    ) -> Model:
        """Read a model and check all of it.

        Parameters
        ----------
        network : the head's architecture, when it is one that adlm does not know by name.
        features : the features, when they are a backbone of your own.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(f"{folder} is not a model: it must be a folder written by adlm train")
        if not (folder / DESCRIPTION).exists() and (folder / TENSORS).exists():
            raise UserError(f"{folder} is a release, not a model; adlm train {folder} makes one of it")
        certificate = Certificate.from_dict(read_json(folder / CERTIFICATE, what="certificate"))
        raw = read_json(folder / DESCRIPTION, what="model description")
        body = {key: value for key, value in raw.items() if key != "digest"}
        if raw.get("schema") != SCHEMA or raw.get("digest") != sha256(canonical(body)):
            raise UserError(
                f"the model description {folder / DESCRIPTION} was altered or is of another version"
            )
        weights = read_tensors(folder / WEIGHTS, raw["weights"])
        taken = checked(certificate.features, features) if raw["on_features"] else None
        head = network or _head(raw["architecture"], weights, certificate)
        try:
            head.load_state_dict(weights)
        except RuntimeError as error:
            raise UserError(f"the weights in {folder} do not fit the network: {error}") from None
        return cls(certificate, head, raw["architecture"], taken, raw["training"])


def _head(
    architecture: Mapping[str, Any], weights: Mapping[str, Tensor], certificate: Certificate
) -> nn.Module:
    match architecture.get("kind"):
        case "linear":
            classes, width = weights["weight"].shape
            return nn.Linear(width, classes, dtype=weights["weight"].dtype)
        case "network":
            shape = tuple(architecture["shape"])
            return build_network(architecture["name"], shape, len(certificate.domain.classes))
        case other:
            raise UserError(f"a head of kind {other!r} must be given: Model.load(folder, network=...)")
