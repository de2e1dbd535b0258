"""Frozen public feature maps h0, and how to build one again from its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.features.base import (
    FEW,
    BoundedVector,
    Features,
    Identity,
    Narrowed,
    PairProducts,
    PriorStatistics,
    RandomDirections,
    declared,
    narrowed,
    unit_norm,
)
from adlm.features.drawn import PriorProjection
from adlm.features.encoders import Backbone, OnnxBackbone, coupling, load_backbone
from adlm.features.photographs import COLOUR, NaturalImages
from adlm.features.tables import CentredTable, IndicatorTable, ScaledTable

__all__ = [
    "Backbone",
    "Features",
    "Narrowed",
    "OnnxBackbone",
    "PairProducts",
    "PriorStatistics",
    "RandomDirections",
    "TABLES",
    "user_supplied",
    "build",
    "checked",
    "declared",
    "described",
    "for_domain",
    "load_backbone",
    "narrowed",
    "provenance_of",
    "unit_norm",
]

TABLES = (
    "tabular",
    "scaled-table",
    "centred-table",
    "indicator-table",
)  # maps of a declared table, which stands in their description
NARROWER = {"narrowed": Narrowed, "random-directions": RandomDirections}


# Maps by the name in their description; those that take another map are built in `build`.
SHIPPED: dict[str, Callable[[Mapping[str, Any]], Features]] = {
    "identity": lambda spec: Identity(tuple(spec["shape"])),
    "vector": lambda spec: BoundedVector(int(spec["size"])),
    "scaled-table": ScaledTable.from_spec,
    "centred-table": CentredTable.from_spec,
    "indicator-table": IndicatorTable.from_spec,
    "prior-projection": lambda spec: PriorProjection(spec["family"], tuple(spec["shape"])),
    "natural": lambda spec: NaturalImages(tuple(spec.get("shape", COLOUR)), int(spec["width"])),
}


def build(spec: Mapping[str, Any]) -> Features:
    """Make the feature map that a spec describes."""
    match spec.get("name"):
        case str(name) if name in SHIPPED:
            return SHIPPED[name](spec)
        case "narrowed" | "random-directions" as name:
            return NARROWER[name](build(spec["of"]), int(spec["width"]))
        case "pair-products":
            return PairProducts(build(spec["of"]), int(spec["leading"]), float(spec["share"]))
        case "backbone":
            raise UserError(
                f"the features are a backbone of your own, {spec.get('encoder') or spec.get('module')}: "
                "give it again (--backbone, features=...)"
            )
        case "onnx":
            raise UserError(
                f"the features are the encoder {spec.get('file')}, SHA-256 {str(spec.get('sha256'))[:12]}: "
                "give it again (--backbone FILE.onnx, features=...)"
            )
        case other:
            raise UserError(f"there are no public features called {other!r}")


def for_domain(domain: Domain) -> Features:
    """Return the public features that suit the declared family and shape of the records."""
    if domain.family == "natural" and (len(domain.shape) == 2 or domain.shape[0] in (1, 3)):
        return PairProducts(NaturalImages(domain.shape))
    if domain.family == "vector":
        return build({"name": "vector", "size": domain.size})
    if domain.family in ("drawn", "garments"):
        plain = build({"name": "prior-projection", "family": domain.family, "shape": list(domain.shape)})
        # Drawn classes lie apart in the plain coordinates; those of garments do not.
        return plain if domain.family == "drawn" else PairProducts(plain, FEW.leading, FEW.share)
    return build({"name": "identity", "shape": list(domain.shape)})


def provenance_of(features: Features, shape: tuple[int, ...]) -> str:
    """Return `public` or `private`, after checking user-supplied features on random inputs.

    Parameters
    ----------
    shape : of one record.
    """
    own = _own(features)
    if own is None:
        return "public"
    named = f"the features {type(own).__name__}"
    origin = declared(own.provenance, named)
    before = features.eval().fingerprint()
    device = next((t.device for t in features.state_dict().values()), "cpu")
    try:
        cause = coupling(features, shape, device=device, rtol=1e-4, atol=1e-5)
    except (RuntimeError, ValueError, IndexError):
        raise UserError(f"{named} do not take records of shape {shape}; give some for that shape") from None
    if cause is None and features.fingerprint() != before:
        cause = "earlier inputs"
    if cause is not None:
        raise UserError(
            f"{named}: output depends on {cause}: sensitivity is undefined; remove batch statistics and state"
        )
    return origin


def described(features: Features) -> dict[str, Any]:
    """Return what a certificate says of a feature map."""
    entry = {"spec": features.spec(), "fingerprint": features.fingerprint()}
    own = _own(features)
    if own is None:
        return entry
    origin = {"provenance": own.provenance or "undeclared"}
    return entry | origin | ({"trained_on": own.trained_on} if own.trained_on else {})


def user_supplied(features: Features) -> bool:
    """Whether a map is the user's own: then a record's features may depend on the rest of its batch."""
    return _own(features) is not None


def _own(features: Features) -> Features | None:
    """Return the user-supplied map, perhaps inside another; None for one of adlm's own."""
    if isinstance(features, Narrowed | PairProducts):
        return _own(features.inner)
    brought = isinstance(features, Backbone | OnnxBackbone)
    ours = type(features).__module__.partition(".")[0] == "adlm" and not brought
    return None if ours else features


def checked(entry: Mapping[str, Any], given: Features | None = None) -> Features:
    """Return the features of a certificate's entry: built again, or given, and the same ones in any case.

    A given map may be the wide one that was narrowed for the release.
    """
    spec = entry["spec"]
    if given is None:
        features = build(spec)
    elif spec.get("name") in NARROWER and given.width != spec["width"]:
        features = NARROWER[spec["name"]](given.part(int(spec["width"])), int(spec["width"]))
    elif isinstance(given, PairProducts):
        products = spec.get("name") == given.spec()["name"]
        features = PairProducts(given.inner, spec["leading"], spec["share"]) if products else given.inner
    else:
        features = given
    if features.fingerprint() != entry["fingerprint"]:
        raise UserError(
            f"these features, {features.spec().get('name')!r}, are not those that the release was made with; "
            "give the same ones, or install the version of adlm that its certificate names"
        )
    return features
