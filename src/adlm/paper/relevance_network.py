"""The network that relevances explain: trained on public classes, saved with its provenance, loaded again.

The paper trains it on the private records, without privacy. Here it is trained on random processes, without
them, so only the average relevance costs privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.paper.networks import build
from adlm.paper.relevance import RelevanceSource
from adlm.privacy.signature import FILE, Signature, Statement, require, sign
from adlm.public.features import declared
from adlm.runtime import progress
from adlm.runtime.artefact import canonical, new_folder, read_json, sha256

CLASSES = 40  # synthetic classes the network learns to separate
_TENSORS, _ABOUT = "network.safetensors", "network.json"


@dataclass(frozen=True, kw_only=True)
class RelevanceNetwork(RelevanceSource):
    """A relevance network that can be saved: `RelevanceSource` with what rebuilds it.

    Attributes
    ----------
    name, shape, classes : arguments of `adlm.paper.networks.build`.
    """

    name: str
    shape: tuple[int, ...]
    classes: int

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
        return cls(network.eval(), origin, name=about["name"], shape=shape, classes=about["classes"])


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
    return RelevanceNetwork(network, "public", name=name, shape=shape, classes=classes)


def synthetic(
    shape: tuple[int, ...], *, classes: int = CLASSES, per_class: int = 100, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Records (n, *shape) in [0, 1] of random classes, and their labels (n,).

    Grey squares get stroke classes, colour squares scenes; anything else gets classes that are random
    points of the unit box with noise around them.

    Parameters
    ----------
    shape : of a record.
    classes, per_class : numbers of classes, and of records of each.
    seed : of the draw.
    """
    generator = torch.Generator().manual_seed(seed)
    square = len(shape) >= 2 and shape[-1] == shape[-2] and shape[-1] >= 16
    if square and (len(shape) == 2 or shape[0] == 1):
        from adlm.public.priors import strokes

        images, labels = strokes.draw(classes, per_class, generator, shape[-1])
        return images.reshape(-1, *shape), labels
    if square and len(shape) == 3 and shape[0] == 3:
        from adlm.public.priors import scenes

        return scenes.draw(classes, per_class, generator, shape[-1])
    labels = torch.arange(classes).repeat_interleave(per_class)
    centres = torch.rand(classes, *shape, generator=generator)
    noise = 0.2 * torch.randn(len(labels), *shape, generator=generator)
    return (centres[labels] + noise).clamp(0, 1), labels


def pretrain(
    network: nn.Module,
    x: Tensor,
    labels: Tensor,
    *,
    epochs: int = 12,
    seed: int = 0,
) -> float:
    """Train a classifier of public records in place; return its accuracy on the last epoch's batches.

    Parameters
    ----------
    network : a classifier of at least as many outputs as there are labels.
    x, labels : (n, *shape) public records in [0, 1] and their class codes; never private records.
    epochs : the paper has 12 for MNIST and 50 for CIFAR-10; a smaller network needs fewer.
    """
    if len(x) != len(labels) or len(x) == 0 or epochs < 1:
        raise UserError(
            f"pre-training needs records, a label for each, and an epoch (got {len(x)}, {epochs})."
        )
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    device = next(network.parameters()).device
    network.train()
    right = 0
    with progress.bar(epochs * len(x), "pre-training", "records") as advance:
        for _ in range(epochs):
            right = 0
            for rows in torch.randperm(len(x), generator=generator).split(100):  # type: ignore[no-untyped-call]
                logits, target = network(x[rows].to(device)), labels[rows].to(device)
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(logits, target).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                right += int((logits.argmax(1) == target).sum())
                advance(len(rows))
    network.eval()
    return right / len(x)
