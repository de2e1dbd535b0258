"""A trained model: public features, a head, and the certificate of the release it was trained on.

On disk it is a folder with `model.safetensors`, `model.json` and the release's `certificate.json`, byte for
byte; with `release.signature.json` when the release was signed, and `signature.json` when the model was. The
description names the certificate's digest, and a model's signature covers both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.features import Features, checked
from adlm.paper.networks import TOGETHER, by_batch
from adlm.paper.networks import build as build_network
from adlm.privacy.certificate import Certificate, Part, box, charges_part, guarantee, header_entries
from adlm.privacy.folders import CERTIFICATE, DESCRIPTION, MODEL_SCHEMA, WEIGHTS, read_model, stamps_of
from adlm.privacy.release import describe
from adlm.privacy.signature import FILE, OF_RELEASE, Signature, Statement, sign
from adlm.runtime.artefact import canonical, new_folder, sha256

BATCH = 512  # scaled records in a batch

AVERAGES, TOGETHER_STATISTICS = "averages of training", "of the records asked about together"


@dataclass(frozen=True)
class Model:
    """A classifier of raw records, or a model of a numeric target.

    Attributes
    ----------
    certificate : of the release; training does not change it.
    head : module from features (or from scaled records, when `features` is None) to logits, or to one number
        in the units of the target.
    architecture : how to rebuild the head: {"kind": "linear"}, or {"kind": "network", "name": ...,
        "shape": ...}; one of kind "custom" must be given to `load`.
    features : the public feature map, or None for a network that takes scaled records themselves.
    training : description of the training, in JSON values, without information on records.
    release_signature, signature : of the release, and of the model itself, if signed.

    Examples
    --------
    >>> import numpy as np
    >>> from adlm import Domain, fit, privatise
    >>> domain = Domain((2,), 0, 1, ("no", "yes"))
    >>> release = privatise(np.eye(2).repeat(50, 0), np.arange(100) // 50, domain, epsilon=8, seed=1)
    >>> model = fit(release)
    >>> [model.classes[code] for code in model.predict([[1, 0], [0, 1]])]
    ['no', 'yes']
    >>> model.probabilities([[1, 0]]).shape
    (1, 2)
    """

    certificate: Certificate
    head: nn.Module
    architecture: Mapping[str, Any]
    features: Features | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    release_signature: Signature | None = None
    signature: Signature | None = None

    @property
    def stamps(self) -> tuple[str, ...]:
        """Warnings of the release, and of the network's initial weights."""
        return stamps_of(self.certificate, self.training)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits."""
        return self.certificate.domain.classes

    @property
    def target(self) -> tuple[float, float] | None:
        """Bounds of the number that is predicted; None for a classifier."""
        return self.certificate.domain.target

    def __repr__(self) -> str:
        """Network and guarantee, in one line."""
        network = self.training.get("network", self.architecture.get("kind"))
        return f"Model({network!r}, {self.certificate.totals.sentence()})"

    def _repr_html_(self) -> str:
        what = ("classes", len(self.classes)) if self.target is None else ("target", self.target)
        network = self.training.get("network", self.architecture.get("kind", "?"))
        facts = [("network", network), what, *guarantee(self.certificate.totals)]
        parts = [Part("training", ("setting", "value"), self.training.items())]
        parts += [Part("classes", ("code", "name"), enumerate(self.classes))] if self.classes else []
        parts += [charges_part(self.certificate.charges)]
        return box("Model", facts, parts, self.stamps)

    def logits(self, x: npt.ArrayLike, *, device: str = "cpu") -> Tensor:
        """Return (n, M) logits of raw records.

        Parameters
        ----------
        x : (n, *shape) records in the units of the domain, or flattened, (n, d).
        device : `cpu`, `cuda` or `mps`.

        Raises
        ------
        UserError : the records do not have the domain's shape, or hold values that are not finite.

        Notes
        -----
        For `TOGETHER` records or more, a network that was trained on noisy records uses the min-max and batch
        statistics of those records; `training["statistics"]` says so. For fewer it uses the averages over
        noisy records, which suit clean ones badly.
        """
        return self._outputs(x, device).float()

    def _outputs(self, x: npt.ArrayLike, device: str) -> Tensor:
        """Return the head's outputs for raw records, in the precision of its weights."""
        domain = self.certificate.domain
        records = np.asarray(x)
        head = self.head.to(device).eval()
        features = None if self.features is None else self.features.to(device).eval()
        parts, step = [], BATCH if features is None else features.batch
        kind = next((p.dtype for p in head.parameters()), torch.float32)
        together = self.training.get("statistics") == TOGETHER_STATISTICS
        with torch.inference_mode():
            batches = max(1, -(-len(records) // step))  # of nearly equal size: none too small for statistics
            for part in np.array_split(records, batches):
                z = torch.from_numpy(domain.scale(part)).to(device)
                z = z if features is None else features(z)
                with by_batch(head, together and len(z) >= TOGETHER):
                    parts.append(_scored(head, z, kind).cpu())
        return torch.cat(parts)

    def probabilities(self, x: npt.ArrayLike, *, device: str = "cpu") -> npt.NDArray[np.float64]:
        """Return (n, M) class probabilities of raw records, given as for `logits`."""
        if self.target is not None:
            raise UserError("this model predicts a number, which has no class probabilities; use values()")
        return self.logits(x, device=device).double().softmax(1).numpy()

    def predict(self, x: npt.ArrayLike, *, device: str = "cpu") -> npt.NDArray[np.int64]:
        """Return (n,) class codes of raw records, given as for `logits`; `classes` has their names."""
        if self.target is not None:
            raise UserError("this model predicts a number, not a class; use values()")
        return self.logits(x, device=device).argmax(1).numpy()

    def values(self, x: npt.ArrayLike, *, device: str = "cpu") -> npt.NDArray[np.float64]:
        """Return (n,) predictions of a numeric target, within its declared bounds; `x` as for `logits`."""
        if self.target is None:
            raise UserError("this model predicts classes, not a number; use predict()")
        predictions = self._outputs(x, device)[:, 0].double().numpy()
        return np.asarray(np.clip(predictions, *self.target))

    def save(self, folder: Path | str, *, key: Ed25519PrivateKey | None = None) -> None:
        """Write the model to a new folder, atomically.

        Parameters
        ----------
        folder : must not exist.
        key : signs the model and its certificate's digest.

        Raises
        ------
        UserError : the folder exists, or cannot be written.
        """
        digest = self.certificate.digest
        weights = {n: t.detach().cpu().contiguous() for n, t in sorted(self.head.state_dict().items())}
        body = {
            "schema": MODEL_SCHEMA,
            "architecture": dict(self.architecture),
            "on_features": self.features is not None,
            "training": dict(self.training),
            "certificate": digest,
            "weights": describe(weights),
        }
        described = body | {"digest": sha256(canonical(body))}
        signed = None if key is None else sign(Statement("model", str(described["digest"]), digest), key)
        entries = header_entries(
            self.certificate, self.stamps, release_signature=self.release_signature, signature=signed
        )
        with new_folder(Path(folder), what="model") as temporary:
            (temporary / WEIGHTS).write_bytes(save_tensors(weights, entries))
            (temporary / DESCRIPTION).write_bytes(canonical(described))
            (temporary / CERTIFICATE).write_bytes(canonical(self.certificate.to_dict()))
            if self.release_signature is not None:
                (temporary / OF_RELEASE).write_bytes(canonical(self.release_signature.to_dict()))
            if signed is not None:
                (temporary / FILE).write_bytes(canonical(signed.to_dict()))

    @classmethod
    def load(
        cls, folder: Path | str, network: nn.Module | None = None, features: Features | None = None
    ) -> Model:
        """Read a model and check digests, weights, signatures, and that it belongs to its certificate.

        Parameters
        ----------
        folder : one that `save` or `adlm train` wrote.
        network : the head's architecture, when it is one that adlm does not know by name.
        features : the features, when they are a user-supplied backbone.

        Raises
        ------
        UserError : the folder is no model, something in it was altered, or the network or the features must
            be given.
        """
        read = read_model(Path(folder))
        raw, weights = read.description, load_tensors(read.weights)
        taken = checked(read.certificate.features, features) if raw["on_features"] else None
        head = network or _head(raw["architecture"], weights, read.certificate)
        if read.certificate.domain.target is not None and raw["architecture"]["kind"] != "linear":
            head = in_units(head)
        try:
            head.load_state_dict(weights)
        except RuntimeError as error:
            raise UserError(f"the weights in {folder} do not fit the network: {error}") from None
        return cls(
            read.certificate,
            head,
            raw["architecture"],
            taken,
            raw["training"],
            read.release_signature,
            read.signature,
        )


def _head(
    architecture: Mapping[str, Any], weights: Mapping[str, Tensor], certificate: Certificate
) -> nn.Module:
    match architecture.get("kind"):
        case "linear":
            classes, width = weights["weight"].shape
            return nn.Linear(width, classes, dtype=weights["weight"].dtype)
        case "network":
            shape = tuple(architecture["shape"])
            return build_network(architecture["name"], shape, len(certificate.domain.classes) or 1)
        case other:
            raise UserError(f"a head of kind {other!r} must be given: Model.load(folder, network=...)")


def _scored(head: nn.Module, z: Tensor, kind: torch.dtype) -> Tensor:
    """Return a head's outputs; a linear one in doubles, so that the batch does not affect them."""
    if not isinstance(head, nn.Linear) or z.device.type == "mps":  # which has no doubles
        scores: Tensor = head(z.to(kind))
        return scores
    bias = None if head.bias is None else head.bias.double()
    return nn.functional.linear(z.double(), head.weight.double(), bias)


def in_units(network: nn.Module, mean: float = 0.0, sd: float = 1.0) -> nn.Sequential:
    """Put a layer on a network of one output that turns standard deviations into the units of a target."""
    last = nn.Linear(1, 1)
    with torch.no_grad():
        last.weight.fill_(sd)
        last.bias.fill_(mean)
    return nn.Sequential(network, last.eval())
