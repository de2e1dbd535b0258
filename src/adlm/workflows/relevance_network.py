"""A relevance network with its provenance: trained on public classes, saved to a folder, loaded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from adlm.analyst.networks import build
from adlm.errors import UserError
from adlm.privacy.signature import FILE, Signature, Statement, require, sign
from adlm.public.features import declared
from adlm.runtime.artefact import canonical, new_folder, read_json, sha256
from adlm.workflows.pretrain import CLASSES, pretrain, synthetic

_TENSORS, _ABOUT = "network.safetensors", "network.json"


@dataclass(frozen=True)
class RelevanceNetwork:
    """A network whose output LRP explains, and the provenance that a release will state.

    Attributes
    ----------
    network : the classifier.
    name, shape, classes : arguments of `adlm.analyst.networks.build` that rebuild it.
    provenance : `public` or `private`.
    """

    network: nn.Module
    name: str
    shape: tuple[int, ...]
    classes: int
    provenance: str

    def save(self, folder: Path | str, *, key: Ed25519PrivateKey | None = None) -> None:
        """Write weights and description to a new folder; with a key, sign both."""
        weights = {key: value.detach().cpu().contiguous() for key, value in self.network.state_dict().items()}
        raw = save_tensors(weights)
        about = {
            "kind": "relevance network",
            "name": self.name,
            "shape": list(self.shape),
            "classes": self.classes,
            "provenance": self.provenance,
            "sha256": sha256(raw),
        }
        with new_folder(Path(folder), what="relevance network") as temporary:
            (temporary / _TENSORS).write_bytes(raw)
            (temporary / _ABOUT).write_bytes(canonical(about))
            if key is not None:
                (temporary / FILE).write_bytes(canonical(sign(_statement(about), key).to_dict()))

    @classmethod
    def load(
        cls, folder: Path | str, *, provenance: str | None = None, trusted: Sequence[Ed25519PublicKey] = ()
    ) -> RelevanceNetwork:
        """Read what `save` wrote; altered weights are refused.

        Parameters
        ----------
        provenance : `public` or `private`, declared by whoever loads it. The folder's own statement is used
            only if it is signed by one of the trusted keys.
        """
        folder = Path(folder)
        about = read_json(folder / _ABOUT, what="relevance network")
        if provenance is None:
            signature = Signature.read(folder / FILE, _statement(about), f"the relevance network {folder}")
            require(
                signature,
                trusted,
                f"the relevance network {folder}",
                "anybody can write 'public' into a file, so declare its provenance yourself "
                "(provenance=..., --relevance-provenance), or trust the key of whoever signed it",
            )
        try:
            raw = (folder / _TENSORS).read_bytes()
            if about["kind"] != "relevance network" or sha256(raw) != about["sha256"]:
                raise KeyError("sha256")
            network = build(about["name"], tuple(about["shape"]), about["classes"])
            network.load_state_dict(load_tensors(raw))
        except (OSError, KeyError, TypeError, RuntimeError, SafetensorError) as problem:
            raise UserError(f"{folder} is not a sound relevance network: {problem}; make it again") from None
        shape = tuple(about["shape"])
        origin = declared(provenance or about.get("provenance", ""), f"the relevance network {folder}")
        return cls(network.eval(), about["name"], shape, about["classes"], origin)


def _statement(about: object) -> Statement:
    return Statement("relevance network", sha256(canonical(about)), "")


def make_public(
    shape: tuple[int, ...],
    *,
    name: str = "small-cnn",
    classes: int = CLASSES,
    per_class: int = 100,
    epochs: int = 12,
    seed: int = 0,
) -> RelevanceNetwork:
    """Pre-train the named network on random public classes of records of ``shape``.

    Parameters
    ----------
    shape : of a record.
    name : of the network.
    classes, per_class : random classes, and records of each.
    epochs : of training.
    seed : of classes and weights.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build(name, shape, classes)
    x, labels = synthetic(shape, classes=classes, per_class=per_class, seed=seed)
    pretrain(network, x, labels, epochs=epochs, seed=seed)
    return RelevanceNetwork(network, name, shape, classes, "public")
