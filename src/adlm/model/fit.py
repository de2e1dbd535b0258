"""From a release to a model: in closed form, or any network trained on draws; searches and class weights."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adlm.errors import NoisyModelWarning, UserError
from adlm.features import Features, declared
from adlm.features.tables import IndicatorTable, ScaledTable
from adlm.model.closed_form import (
    UNSURE,
    closed_form,
    closed_form_model,
    has_head,
    log_shares,
    usable_head,
    warning,
)
from adlm.model.estimates import class_means, fit_class_model
from adlm.model.model import Model
from adlm.model.table_draws import draw_features, draw_without_labels
from adlm.model.training import Checkpoint, Examples, TrainingConfig, default_plan
from adlm.paper import networks
from adlm.paper.training import model_on_records, train_on_examples, training_summary
from adlm.privacy.release import Release

# ---- Classes that are too small for the noise, found from released counts.
#
# Noise is the same for every class, so a small class is learnt worst. Everything here reads released
# numbers.

CLEAR = 2.0  # standard deviations of its noise that a count must exceed to be distinguished from 0
BELOW = 3.0  # standard deviations by which a count must stay below n / M for its class to be called small
MOST_SHOWN = 5  # classes that are listed one by one


@dataclass(frozen=True)
class SmallClass:
    """A class whose released count is not distinguishable from noise.

    Attributes
    ----------
    count : as it was released; it may be negative.
    sd : standard deviation of the noise on it.
    """

    name: str
    count: float
    sd: float

    def sentence(self) -> str:
        """Describe the problem and what to do about it."""
        return (
            f"class {self.name!r} may be smaller than its noise: released count {self.count:.0f}, noise of "
            f"standard deviation {self.sd:.0f}; do not expect it to be predicted well: raise epsilon, or "
            "merge classes"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"class": self.name, "count": round(self.count, 1), "sd": round(self.sd, 1)}


def small_classes(release: Release) -> tuple[SmallClass, ...]:
    """Return the classes that may be smaller than the noise on their count.

    A class is named when its released count is at most twice the standard deviation of its noise, and
    three of them below n / M. A moment release spends little on counts, so noise alone does not make a
    class small. Where that deviation exceeds n / M, all classes are named. A record release holds no counts,
    so none is named.
    """
    tensors, settings = release.tensors, release.certificate.settings
    if not {"class_sums", "step"} <= set(tensors) or "sd_sums" not in settings:
        return ()
    step = float(tensors["step"][0])
    counts, sd = (tensors["class_sums"][:, 0].double() * step).tolist(), float(settings["sd_sums"]) * step
    n = settings.get("n")
    uniform = max(float(n) if isinstance(n, int) else sum(counts), 0.0) / len(counts)
    names = release.certificate.domain.classes
    return tuple(
        SmallClass(name, count, sd)
        for name, count in zip(names, counts, strict=True)
        if uniform <= sd or (count <= CLEAR * sd and count + BELOW * sd < uniform)
    )


def sentences(small: Sequence[SmallClass]) -> list[str]:
    """One sentence for each small class, at most a few."""
    shown = [one.sentence() for one in small[:MOST_SHOWN]]
    rest = len(small) - len(shown)
    return [*shown, f"and so may be {rest} more classes"] if rest else shown


# ---- Public class weights, applied to a trained model at no privacy cost.
#
# A classifier that is trained with weights w_c on a loss of log probabilities has logits that are larger by
# log w_c than one trained without. So weights need no new release: they shift the biases of a release's
# model, and so the labels of the draws that a network is trained on. `balanced` takes them from counts that
# were released and charged already, never from records. Where class means are known, the biases make all
# scores equal half-way between them. The clip of gradient rounds shrinks scores, which log shares would not
# correct.

BALANCED = "balanced"
Weights = Mapping[str, float] | str


def parse_class_weight(text: str) -> Weights:
    """Read `balanced`, or `NAME=WEIGHT,NAME=WEIGHT`."""
    if text == BALANCED:
        return BALANCED
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = part.rpartition("=")
        try:
            weights[name.strip()] = float(weight)
        except ValueError:
            equals = ""
        if not equals:
            raise UserError(
                f"class weights are {BALANCED}, or NAME=WEIGHT for some classes with commas between (got "
                f"{text!r})"
            )
    return weights


def class_weights(release: Release, given: Weights) -> dict[str, float]:
    """Return a weight for each class.

    Parameters
    ----------
    given : weights by class name, 1 for a class that is not named; or `balanced`, n / (M n_c) by the
        released counts n_c, in which a class has at least a fiftieth of a uniform share.
    """
    names = release.certificate.domain.classes
    if not names:
        raise UserError("class weights are for classes, and this release has a numeric target; omit them")
    if isinstance(given, str):
        if given != BALANCED:
            raise UserError(f"class weights are {BALANCED!r} or a weight for each name (got {given!r})")
        if "class_sums" not in release.tensors:
            raise UserError(
                "balanced class weights come from released counts, and this release has none; give a weight "
                "for each class from public shares"
            )
        shares = log_shares(release).exp().tolist()
        return {name: 1 / (len(names) * share) for name, share in zip(names, shares, strict=True)}
    by_name = {str(name): weight for name, weight in given.items()}
    for name, weight in by_name.items():
        if name not in names:
            raise UserError(f"there is no class {name!r} to weigh; the classes are {', '.join(names)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise UserError(f"the weight of class {name!r} must be a positive number (got {weight!r})")
    return {name: float(by_name.get(name, 1.0)) for name in names}


def with_class_weights(model: Model, release: Release, given: Weights | None) -> Model:
    """Return a model with class weights, at no privacy cost. None changes nothing."""
    if given is None:
        return model
    weights = class_weights(release, given)
    if not isinstance(model.head, nn.Linear):
        raise UserError(
            "the class weights of a network go into its plan: fit(release, network, TrainingConfig(..., "
            "class_weight=...))"
        )
    head = nn.Linear(model.head.in_features, model.head.out_features, dtype=model.head.weight.dtype)
    summary = dict(model.training)
    with torch.no_grad():
        head.weight.copy_(model.head.weight)
        if given == BALANCED and release.kind == "moments":
            # Also for a model that was replaced by the largest class: plain accuracy is not the goal here.
            weight = closed_form(release, release.features(model.features)).weight
            middle = class_means(release.moments()).mean(0)  # equal weight for every class
            head.weight.zero_()
            head.weight[:, : weight.shape[1]] = weight.to(head.weight.dtype)
            head.bias.copy_(-(weight.double() @ middle[: weight.shape[1]]))
            if summary.get("warning"):
                summary["warning"] = UNSURE
        else:
            head.bias.copy_(model.head.bias + torch.tensor([math.log(w) for w in weights.values()]))
    summary |= {
        "class_weight": given if isinstance(given, str) else "given",
        "class_weights": {name: float(f"{w:.6g}") for name, w in weights.items()},
    }
    return replace(model, head=head, training=summary)


# ---- Labelled draws from a release, to train any network on, at no privacy cost.
#
# Feature vectors are sampled from released statistics. The closed-form model labels them where it is more
# accurate than the class of a draw.

# Share of the first of two mixed draws; fixed by the agreement of a network and the head on 6,000 training
# images of MNIST.
MIXED = (0.25, 0.75)
ABOUT_TARGET = ("target_mean", "target_sd", "warning")


def labelled_draws(
    release: Release, features: Features, n: int, plan: TrainingConfig
) -> tuple[Examples, dict[str, Any]]:
    """Draw n examples from a release of any kind but noisy records, with entries for a summary.

    Parameters
    ----------
    release : what is drawn from.
    features : its public features.
    n : how many.
    plan : gives the seed of the draws and the class weights of the labels.
    """
    generator = torch.Generator().manual_seed(plan.seed)
    if release.kind == "regression":
        return _with_target(release, features, n, generator)
    facts: dict[str, Any] = {}
    if not has_head(release):
        z, target = fit_class_model(release.moments(), features.prior).sample(n, generator)
        if plan.class_weight is not None:
            weights = torch.tensor(list(class_weights(release, plan.class_weight).values()))
            rows = torch.nn.functional.one_hot(target, len(weights)) * weights
            target = rows / weights[target].mean()
        wide = _wide(z, features)
    else:
        wide = _features(release, features, n, generator)
        target = _labels(release, features, wide, plan)
    if sentence := warning(release):  # draws of moments are not labelled by the head of the largest class
        facts["warning"] = sentence if has_head(release) else UNSURE
    if plan.class_weight is not None:
        class_weight = plan.class_weight
        facts |= {
            "class_weight": class_weight if isinstance(class_weight, str) else "given",
            "class_weights": class_weights(release, class_weight),
        }
    return Examples(wide, target), facts


def _features(release: Release, features: Features, n: int, generator: torch.Generator) -> Tensor:
    if isinstance(features, ScaledTable):
        return _wide(draw_features(release, features, n, generator), features)
    drawn = _wide(_between_classes(release, features, n, generator), features)
    return features.possible(drawn) if isinstance(features, IndicatorTable) else drawn


def _between_classes(release: Release, features: Features, n: int, generator: torch.Generator) -> Tensor:
    """Mixes of two draws of the class model, (n, k).

    A draw lies near its class mean, where the head is confident and teaches little. Mixes lie near the
    decision boundaries.
    """
    drawn = fit_class_model(release.moments(), features.prior).sample(n, generator)[0]
    low, high = MIXED
    share = low + (high - low) * torch.rand(n, 1, generator=generator)
    return share * drawn + (1 - share) * drawn.roll(1, 0)


def _labels(release: Release, features: Features, wide: Tensor, plan: TrainingConfig) -> Tensor:
    """Class probabilities, (n, M), of the draws by the closed-form model, with class weights if any."""
    if plan.class_weight is None:
        head = usable_head(release, features)
        return torch.as_tensor(head(wide[:, : head.in_features].double()).softmax(1).float())
    model = with_class_weights(closed_form_model(release, features), release, plan.class_weight)
    kind = next(model.head.parameters()).dtype
    with torch.inference_mode():
        return torch.as_tensor(model.head(wide.to(kind)).softmax(1).float()).clone()


def _wide(z: Tensor, features: Features) -> Tensor:
    """Draws of the first coordinates, padded with zeros: (n, width)."""
    wide = torch.zeros(len(z), features.width)
    wide[:, : z.shape[1]] = z
    return wide


def _with_target(
    release: Release, features: Features, n: int, generator: torch.Generator
) -> tuple[Examples, dict[str, Any]]:
    """Draws with the linear model's predictions, (n, 1), in standard deviations from the target's mean."""
    model = closed_form_model(release, features)
    facts = {name: model.training[name] for name in ABOUT_TARGET if name in model.training}
    low, high = release.certificate.domain.target or (-np.inf, np.inf)
    z = draw_without_labels(release, features, n, generator)
    with torch.inference_mode():
        values = model.head(z.double()).clamp(low, high)
    standard = (values - facts["target_mean"]) / facts["target_sd"]
    return Examples(z, standard.float().clone()), facts


# ---- From a release to a model: in closed form, or by training any network on it.

DRAWS = 20_000


def fit(
    release: Release,
    network: str | nn.Module | None = None,
    plan: TrainingConfig | None = None,
    *,
    provenance: str | None = None,
    features: Features | None = None,
    draws: int = DRAWS,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
) -> Model:
    """Make a model from a release alone; its certificate is the release's, whatever is done here.

    Parameters
    ----------
    release : noisy numbers and their certificate; the records are not needed.
    network : a network by name, or any module. It takes the features of a moment release, or the scaled
        records of a record release. None gives the linear classifier of a moment release in closed form, or
        the network that a record release was made for.
    plan : how to train a network; by default `default_plan` of as many examples, as in `adlm train`.
    provenance : of a module's initial weights: `public` when no private record had a part in them, else
        `private`. A certificate is about the release alone, so the model is stamped unless they are
        `public`.
    features : the features of a moment release, when they are a user-supplied backbone.
    draws : how many labelled vectors to draw from released moments for a network.
    device : `auto`, `cpu`, `cuda` or `mps`.
    checkpoint : file that saves the training of a network after each epoch, and whether to resume from it.

    Returns
    -------
    The model. `model.training` describes its training, and warns where noise dominates.

    Raises
    ------
    UserError : the network does not fit the features or the classes, the features are not the release's, a
        setting is for another kind of release, or training gave no finite loss.

    Warns
    -----
    NoisyModelWarning : when the release itself cannot show that the model is better than the largest class.

    Examples
    --------
    >>> import numpy as np
    >>> from adlm import Domain, fit, privatise
    >>> x, y = np.eye(2).repeat(50, 0), np.arange(100) // 50
    >>> release = privatise(x, y, Domain((2,), 0, 1, ("no", "yes")), epsilon=8, seed=1)
    >>> fit(release).predict([[1, 0], [0, 1]])
    array([0, 1])
    >>> fit(release, "mlp", draws=500).certificate == release.certificate
    True
    """
    origin = declared_origin(network, provenance)
    model = _made(release, network, plan, features, draws, device, checkpoint)
    summary = dict(model.training) if origin is None else dict(model.training) | {"provenance": origin}
    warn_of_noise(summary, stacklevel=3)
    return replace(model, training=summary, release_signature=release.signature)


def warn_of_noise(training: Mapping[str, Any], *, stacklevel: int) -> None:
    """Warn with the sentence that a model's training summary has, if it has one."""
    if training.get("warning"):
        warnings.warn(str(training["warning"]), NoisyModelWarning, stacklevel=stacklevel)


def declared_origin(network: str | nn.Module | None, provenance: str | None) -> str | None:
    """Return the declared provenance of a module's weights; None for a network that adlm builds."""
    if not isinstance(network, nn.Module):
        if provenance is not None:
            raise UserError("provenance is for a user-supplied module; leave it out for a network by name")
        return None
    return "undeclared" if provenance is None else declared(provenance, "the network")


def _made(
    release: Release,
    network: str | nn.Module | None,
    plan: TrainingConfig | None,
    features: Features | None,
    draws: int,
    device: str,
    checkpoint: Checkpoint | None,
) -> Model:
    if release.kind == "records":
        return model_on_records(release, network, plan, device=device, checkpoint=checkpoint)
    taken = release.features(features)
    if network is None:
        return closed_form_model(release, taken)
    return _on_draws(release, taken, network, plan or default_plan(draws), draws, device, checkpoint)


def _on_draws(
    release: Release,
    features: Features,
    network: str | nn.Module,
    plan: TrainingConfig,
    draws: int,
    device: str,
    checkpoint: Checkpoint | None,
) -> Model:
    target = release.certificate.domain.target
    outputs = len(release.certificate.domain.classes) if target is None else 1
    head, architecture = networks.initialised(network, (features.width,), outputs, plan.seed)
    check_shapes(head, features.width, outputs)
    examples, facts = labelled_draws(release, features, draws, plan)
    history = train_on_examples(release, head, examples, plan, device=device, checkpoint=checkpoint)
    if target is not None:
        head = networks.in_units(head, float(facts["target_mean"]), float(facts["target_sd"]))
    return Model(
        release.certificate,
        head,
        architecture,
        features,
        training_summary(architecture, plan, history) | facts,
    )


def check_shapes(network: nn.Module, width: int, outputs: int) -> None:
    """Refuse a network that does not take what a release gives, before it is trained."""
    was, found = network.training, None
    try:
        with torch.no_grad():
            found = tuple(network.eval()(torch.zeros(2, width)).shape)
        why = f"yours gives {found}" if found != (2, outputs) else ""
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        why = f"yours failed on it: {str(error).splitlines()[0]}"
    finally:
        network.train(was)
    if why:
        raise UserError(
            f"this release gives vectors of {width} features, so a network must map (n, {width}) to "
            f"(n, {outputs}), and {why}; a network of images trains on noisy records: adlm.paper.train"
        )


# ---- Hyper-parameter search on one release, at no privacy cost.

WEIGHTS = "class_weight"


@dataclass(frozen=True)
class Search:
    """Models trained on one release, with their settings and scores, best first."""

    models: tuple[Model, ...]
    settings: tuple[Mapping[str, Any], ...]
    scores: tuple[float, ...]

    @property
    def best(self) -> Model:
        """The model with the highest score."""
        return self.models[0]


def search_on_release(release: Release, settings: Iterable[Mapping[str, Any]], score: Any) -> Search:
    """Train on one release with several settings, at no privacy cost if `score` reads nothing private.

    Parameters
    ----------
    release : to train on.
    settings : keyword arguments of `adlm.fit` (`network`, `plan`, `draws`); `class_weight` for any linear
        model, while that of a network is in its plan.
    score : from a `Model` to a number, larger is better. It should read public or drawn records: a choice by
        private ones is a statistic of them that is not charged.

    Returns
    -------
    The models with their settings and scores, best first.

    Raises
    ------
    UserError : there are no settings, or one is not for this kind of release; nothing is trained then.

    Examples
    --------
    >>> search = search_on_release(release, [{}, {"network": "mlp"}], score)  # doctest: +SKIP
    >>> search.best.save("M")  # doctest: +SKIP
    """
    tried = [dict(s) for s in settings]
    if not tried:
        raise UserError("there is nothing to search; give at least one set of settings")
    for options in tried:  # check all before training any
        _check(options)
    models = [train_on_release(release, options) for options in tried]
    scores = [float(score(model)) for model in models]
    order = sorted(range(len(models)), key=lambda i: -scores[i])
    return Search(
        tuple(models[i] for i in order), tuple(tried[i] for i in order), tuple(scores[i] for i in order)
    )


def train_on_release(release: Release, settings: Mapping[str, Any]) -> Model:
    """Train on a release with settings as for `search_on_release`.

    It warns, with `NoisyModelWarning`, of a model that may be no better than the largest class, whatever the
    kind of the release.
    """
    _check(settings)
    options = {name: value for name, value in settings.items() if name != WEIGHTS}
    model: Model = fit(release, **options)
    if settings.get("network") is None:  # those of a network are in its plan
        model = with_class_weights(model, release, settings.get(WEIGHTS))
    return replace(model, release_signature=release.signature)


def _check(settings: Mapping[str, Any]) -> None:
    if settings.get(WEIGHTS) is not None and settings.get("network") is not None:
        raise UserError("the class weights of a network go into its plan: TrainingConfig(class_weight=...)")
    known = [*list(inspect.signature(fit).parameters)[1:], WEIGHTS]
    for name in settings:
        if name not in known:
            raise UserError(f"there is no setting {name!r} for this release; it has {', '.join(known)}")
