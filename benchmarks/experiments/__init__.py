"""Figures and tables: the paper's, side by side with DP-SGD and with ours."""

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
    "epochs": "One to a thousand epochs: who pays for them",
    "search": "A search of 200 trials: who pays for it",
    "allocation": "Noise by relevance against identical noise, at widths that suit the budget and not",
}
