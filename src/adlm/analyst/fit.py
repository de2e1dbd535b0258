"""From a release to a model: in closed form, or by training any network on it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor, nn

from adlm.analyst import networks, regression, tables
from adlm.analyst.checkpoint import Checkpoint
from adlm.analyst.examples import Examples, from_records
from adlm.analyst.layer_sizes import perturb_bias
from adlm.analyst.model import AVERAGES, TOGETHER_STATISTICS, Model
from adlm.analyst.rounds import DROWNED, drowned, estimated_accuracy, has_rounds, log_shares, rounds_head
from adlm.analyst.training import History, TrainingConfig, default_plan, train
from adlm.analyst.unsupervised import EPOCHS, Unsupervised
from adlm.errors import UserError
from adlm.estimation import discriminant
from adlm.estimation.class_model import fit_class_model
from adlm.privacy.release import Release
from adlm.public.features import Features, declared

DRAWS = 20_000
LITTLE_NOISE = 0.05  # in ranges of a feature
LINEAR = "linear, in closed form"
ROUNDS = "linear, by gradient rounds"


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
    release : what may be known of the records.
    network : None for the linear classifier of a moment release in closed form, or for the network that a
        record release was made for; else a network by name, or any module that takes the features (moment
        release) or scaled records (record release).
    plan : how to train a network; `default_plan` of as many examples when not given, which is what
        `adlm train` takes.
    provenance : of a module: `public` when no private record had a part in its weights as it is given, else
        `private`. A certificate is about the release alone, so what a module brings along is stamped on
        the model unless it is `public`.
    features : the features of a moment release, when they are a backbone of your own.
    draws : how many labelled vectors to draw from released moments for a network.
    device : `auto`, `cpu`, `cuda` or `mps`.
    checkpoint : file that keeps the training of a network after each epoch, and whether to go on from it.
    """
    kept = checkpoint or Checkpoint(None)
    origin = _origin(network, provenance)
    made = _made(release, network, plan, features, draws, device, kept.path, kept.resume)
    summary = dict(made.training) if origin is None else dict(made.training) | {"provenance": origin}
    return replace(made, training=summary, release_signature=release.signature)


def _origin(network: str | nn.Module | None, provenance: str | None) -> str | None:
    """Return what is declared of a module's weights; None for a network that adlm builds itself."""
    if not isinstance(network, nn.Module):
        if provenance is not None:
            raise UserError("provenance is for a module of your own; leave it out for a network by name")
        return None
    return "undeclared" if provenance is None else declared(provenance, "the network")


def _made(
    release: Release,
    network: str | nn.Module | None,
    plan: TrainingConfig | None,
    features: Features | None,
    draws: int,
    device: str,
    checkpoints: Path | None,
    resume: bool,
) -> Model:
    if release.kind == "regression":
        if network is not None:
            raise UserError("a release for a numeric target makes a linear model; leave the network out")
        return regression.train(release)
    if release.kind == "table":
        if network is not None:
            raise UserError("a table's release makes an additive model; leave the network out")
        return tables.train(release)
    if release.kind != "records":
        taken = release.features(features)
        if network is None:
            return _closed_form(release, taken)
        plan = plan or default_plan(draws)
        return _on_draws(release, taken, network, plan, draws, device, checkpoints, resume)
    if network is None:
        network = network_of(release)
    plan = plan or default_plan(len(release.tensors["x"]))
    return _on_records(release, network, plan, device, checkpoints, resume)


def learn_records(
    release: Release, network: str | Unsupervised, *, seed: int = 0, epochs: int = EPOCHS
) -> Unsupervised:
    """Train a network that learns records alone on a record release, with labels or without.

    Parameters
    ----------
    network : `auto-encoder`, `rbm`, `deep-belief`, or an `Unsupervised` of your own, trained in place.

    The target is the released record: no label is asked for, so a release of budgets without epsilon3 is
    enough. Nothing here costs privacy.
    """
    if release.kind != "records":
        raise UserError(f"a release of kind {release.kind!r} holds no records to learn")
    domain = release.certificate.domain
    body = _network(network, domain.shape, len(domain.classes), seed)[0]
    if not isinstance(body, Unsupervised):
        raise UserError(
            f"{networks.name_of(body)} learns labels, not records; choose auto-encoder, rbm or deep-belief"
        )
    perturb_bias(body, domain.shape, float(release.tensors["bias"]))  # line 14
    body.learn_records(release.tensors["x"], seed=seed, epochs=epochs)
    return body


def _learn_records(network: nn.Module, x: Tensor, seed: int, checkpoints: Path | None, resume: bool) -> None:
    """Let a network that learns records before labels do so, unless it goes on from a checkpoint."""
    if isinstance(network, Unsupervised) and not (
        resume and checkpoints is not None and checkpoints.exists()
    ):
        network.learn_records(x, seed=seed)


def noise_scale(release: Release) -> float:
    """Scale of the noise on a feature of a record release, in ranges of the feature, at budget ratio one."""
    settings = release.certificate.settings
    parts = (Fraction(str(settings[key])) for key in ("delta_h0", "batch_size", "epsilon2"))
    delta_h0, batch_size, epsilon2 = parts
    return float(delta_h0 / batch_size / epsilon2)


def network_of(release: Release) -> str:
    """Name of the network that a record release was made for."""
    name = release.certificate.settings.get("network")
    if name not in networks.NETWORKS:
        summary = "does not say what network it was made for" if name is None else f"was made for {name}"
        raise UserError(
            f"the release {summary}, which cannot be built by name; give the network to train: a module, or "
            f"--network with one of {', '.join(networks.NETWORKS)}"
        )
    return str(name)


def _closed_form(release: Release, features: Features) -> Model:
    linear = closed_form(release, features).module(features.width)
    summary: dict[str, object] = {"network": ROUNDS if has_rounds(release) else LINEAR, "epochs": 0}
    if (found := estimated_accuracy(release)) is not None:
        summary |= {"estimated_accuracy": found[0], "estimated_accuracy_sd": found[1]}
    if drowned(release):
        summary["warning"] = DROWNED
        nothing = torch.zeros(len(linear.bias), features.width)
        linear = discriminant.LinearHead(nothing, log_shares(release)).module()
    return Model(release.certificate, linear, {"kind": "linear"}, features, summary)


def closed_form(release: Release, features: Features) -> discriminant.LinearHead:
    """The linear classifier of a release: the head of its gradient rounds, or that of its moments."""
    if has_rounds(release):
        head = rounds_head(release)
        return discriminant.LinearHead(torch.from_numpy(head.weight), torch.from_numpy(head.bias))
    return discriminant.fit(release.moments(), features.prior)


def _on_draws(
    release: Release,
    features: Features,
    network: str | nn.Module,
    plan: TrainingConfig,
    draws: int,
    device: str,
    checkpoints: Path | None,
    resume: bool,
) -> Model:
    moments = release.moments()
    k = moments.sums.shape[1]
    generator = torch.Generator().manual_seed(plan.seed)
    z, codes = fit_class_model(moments, features.prior).sample(draws, generator)
    if has_rounds(release):  # the head knows better than the class means which draw is of which class
        codes = closed_form(release, features).logits(z).argmax(1)
    wide = torch.zeros(draws, features.width)
    wide[:, :k] = z
    head, architecture = _network(network, (features.width,), len(moments.counts), plan.seed)
    _learn_records(head, wide, plan.seed, checkpoints, resume)
    history = train(
        head,
        Examples(wide, codes),
        plan,
        device=device,
        checkpoints=checkpoints,
        resume=resume,
        identity=str(release.certificate.to_dict()["digest"]),
    )
    return Model(release.certificate, head, architecture, features, _summary(architecture, plan, history))


def _on_records(
    release: Release,
    network: str | nn.Module,
    plan: TrainingConfig,
    device: str,
    checkpoints: Path | None,
    resume: bool,
) -> Model:
    domain = release.certificate.domain
    body, architecture = _network(network, domain.shape, len(domain.classes), plan.seed)
    perturb_bias(body, domain.shape, float(release.tensors["bias"]))  # line 14
    examples = from_records(release)
    _learn_records(body, examples.x, plan.seed, checkpoints, resume)
    history = train(
        body,
        examples,
        plan,
        device=device,
        checkpoints=checkpoints,
        resume=resume,
        identity=str(release.certificate.to_dict()["digest"]),
    )
    # Averages over noisy records do not fit clean ones; where there is hardly any noise they do.
    statistics = TOGETHER_STATISTICS if noise_scale(release) > LITTLE_NOISE else AVERAGES
    summary = _summary(architecture, plan, history) | {"statistics": statistics}
    return Model(release.certificate, body, architecture, None, summary)


def _network(
    network: str | nn.Module, shape: tuple[int, ...], classes: int, seed: int
) -> tuple[nn.Module, dict[str, object]]:
    if isinstance(network, nn.Module):
        return network, {"kind": "custom", "name": type(network).__name__, "shape": list(shape)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = networks.build(network, shape, classes)
    return built, {"kind": "network", "name": network, "shape": list(shape)}


def _summary(architecture: dict[str, object], plan: TrainingConfig, history: History) -> dict[str, object]:
    if not history.losses:
        raise UserError(f"training gave no network: {history.stopped or 'there were no epochs'}")
    return {
        "network": architecture["name"],
        "epochs": len(history.losses),
        "first_loss": history.losses[0],
        "loss": history.losses[-1],
        "stopped": history.stopped,
        "seed": plan.seed,
    }
