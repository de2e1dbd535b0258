"""The names of all methods, their labels in tables and figures, and how to run one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from benchmarks.experiments import benchmark_data, methods, paper_readings, postprocessing_cost
from benchmarks.experiments.trials import Done, Outcome, Trial

READINGS = {
    "no-noise": "no noise, the control",
    "adlm-shared": "AdLM, the authors' reading: one noise image a batch, redrawn",
    "ilm-shared": "ILM, the authors' reading; eps2, eps3 as AdLM has them",
    "ilm-shared-total": "ILM, the authors' reading; total as AdLM has it",
    "ilm-shared-own-labels": "ILM, one noise image a batch, redrawn; own label noise",
    "adlm-one-image": "AdLM, one noise image for all of training",
    "ilm-one-image": "ILM, one noise image for all of training",
    "adlm-own-once": "AdLM, own noise once: Algorithm 1",
    "ilm-own-once": "ILM, own noise once: Algorithm 1",
    "ilm-own-redrawn": "ILM, own noise, redrawn at each read",
}
FROM_PIXELS = ("adlm", "ilm", "psgd-abadi", "psgd-tanh", *READINGS)


def perform(trial: Trial) -> Outcome:
    """Run a trial; the outcome names the public features it depends on, if any."""
    outcome = METHODS[trial.method](trial)
    return outcome if trial.method in FROM_PIXELS else outcome | {"features": fingerprint(trial.data)}


def current(done: Done) -> bool:
    """Whether a stored trial used the current public features and the current rule."""
    if done.trial.method in FROM_PIXELS:
        return True
    if done.outcome.get("features") != fingerprint(done.trial.data):
        return False
    if METHODS[done.trial.method] is not methods.moments:
        return True
    trial = done.trial
    plan = benchmark_data.planned(
        trial.data, trial.epsilon, trial.delta, benchmark_data.ReleaseRequest(**trial.settings)
    )
    return all(done.outcome.get(name) == plan.to_dict().get(name) for name in methods.CHOSEN)


@lru_cache(maxsize=4)
def fingerprint(data: str) -> str:
    """Short name of the public features of a data set; how many products are taken is the rule's choice."""
    return benchmark_data.without_products(benchmark_data.features(data)).fingerprint()[:16]


METHODS: dict[str, Callable[[Trial], Outcome]] = {
    "moments-pure": methods.moments,
    "moments": methods.moments,
    "moments-add-remove": methods.moments,
    "ilm-moments": methods.moments,
    "adlm-moments": methods.moments,
    "ilm-moments-pure": methods.moments,
    "adlm-moments-pure": methods.moments,
    **dict.fromkeys(READINGS, paper_readings.perform),
    "adlm": methods.records,
    "ilm": methods.records,
    "psgd-abadi": methods.psgd_network,
    "psgd-tanh": methods.psgd_network,
    "psgd-linear": methods.psgd_linear,
    "psgd-linear-replace-one": methods.psgd_linear,
    "ceiling": methods.ceiling,
    "prior": methods.prior,
    "plan-pure": methods.planned,
    "plan": methods.planned,
    "epochs-release": postprocessing_cost.epochs_release,
    "epochs-psgd": postprocessing_cost.epochs_psgd,
    "search-release": postprocessing_cost.search_release,
    "search-psgd": postprocessing_cost.search_psgd,
}

LABELS = {
    "moments-pure": "AdLM moment release, pure",
    "moments": "AdLM moment release, delta 1e-5",
    "moments-add-remove": "AdLM moment release, delta 1e-5, add-remove",
    "ilm-moments": "moment release, identical noise",
    "adlm-moments": "moment release, adaptive noise",
    "ilm-moments-pure": "moment release, identical noise, pure",
    "adlm-moments-pure": "moment release, adaptive noise, pure",
    **READINGS,
    "adlm": "AdLM record release, own noise, Delta_h0 per patch",
    "ilm": "ILM record release, own noise, Delta_h0 per patch",
    "psgd-abadi": "DP-SGD, settings of Abadi et al.",
    "psgd-tanh": "DP-SGD, tanh network, batches of 2,048",
    "psgd-linear": "DP-SGD, linear head on our features",
    "psgd-linear-replace-one": "DP-SGD, linear head on our features, replace-one",
    "ceiling": "no privacy, logistic regression on the same features",
    "prior": "public prior alone (epsilon 0)",
    "plan-pure": "predicted by adlm plan, pure",
    "plan": "predicted by adlm plan, delta 1e-5",
    "epochs-release": "network on one moment release",
    "epochs-psgd": "DP-SGD, the same noise at each step",
    "search-release": "200 trials on one release",
    "search-psgd": "200 trials of DP-SGD",
}
