"""The experiments by name: their titles, for the command line and for the pages of results."""

from __future__ import annotations

TITLES = {
    "paper-mnist": "The paper's Fig. 4 on MNIST: "
    "each reading of its noise, claimed and proved, with its control",
    "paper-cifar10": "The paper's Fig. 5 on CIFAR-10: "
    "each reading of its noise, claimed and proved, with its control",
    "paper-ablation": "The authors' reading on MNIST at claimed 0.5, one setting changed at a time",
    "frontier-mnist": "Accuracy over proved epsilon on MNIST",
    "frontier-fashion-mnist": "Accuracy over proved epsilon on Fashion-MNIST",
    "frontier-cifar10": "Accuracy over proved epsilon on CIFAR-10",
    "frontier-digits": "What 1,437 records can expect",
    "rule-digits": "The rule and plans beside it: scikit-learn's digits",
    "rule-small": "The rule and plans beside it: 6,000 records of MNIST",
    "rule-five": "The rule and plans beside it: the first five classes of MNIST",
    "rule-adult": "The rule and plans beside it: Adult, a table",
    "epochs": "One to a thousand epochs: who pays for them",
    "search": "A search of 200 trials: who pays for it",
    "allocation": "Noise by relevance against identical noise, at widths that suit the budget and not",
}
