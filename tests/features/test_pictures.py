"""Oriented gradients: directions, cells, invariances, and what a linear model makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.features import OrientedGradients
from expost.features.texts_and_pictures import picture_shape


def histogram(picture: Any, cells: int = 2, orientations: int = 8) -> Any:
    """Return features of one picture as (orientation, row of cells, column of cells)."""
    features = OrientedGradients(picture.shape, cells, orientations)
    return features.transform(picture[None])[0, :-1].reshape(orientations, cells, cells)


def test_a_slope_has_one_direction() -> None:
    down, across = np.mgrid[0:16, 0:16].astype(float)
    for turn, picture in enumerate((across, across + down, down, down - across)):
        found = histogram(picture)
        # inside, all gradient is in this direction: none in the others
        assert found.sum(axis=(1, 2)).argmax() == turn
        assert histogram(-picture).sum(axis=(1, 2)).argmax() == turn + 4


def test_an_edge_is_found_in_its_cell() -> None:
    picture = np.zeros((16, 16))
    picture[:4, 2:6] = 1.0  # above left
    found = histogram(picture)
    assert found[:, 0, 0].sum() > 10 * found[:, 1, 1].sum()


def test_brightness_and_contrast_do_not_matter() -> None:
    picture = np.random.default_rng(0).integers(0, 200, size=(12, 12)).astype(float)
    found = histogram(picture)
    np.testing.assert_allclose(histogram(picture * 2.0**200), found, atol=1e-12)
    np.testing.assert_allclose(histogram(picture * 2.0**-1060), found, atol=0.1)  # subnormal
    np.testing.assert_allclose(histogram(picture * 0.7), found, atol=0.01)
    np.testing.assert_allclose(histogram(picture + 50), found, atol=0.01)


def test_a_flat_picture_is_the_constant_alone() -> None:
    found = OrientedGradients("6x6").transform(np.full((1, 6, 6), 7.0))[0]
    assert not found[:-1].any()
    assert found[-1] == pytest.approx(1)


def test_a_picture_with_an_unreadable_pixel_is_the_zero_row() -> None:
    pictures = np.ones((3, 6, 6))
    pictures[0, 2, 2], pictures[1, 2, 2] = np.nan, np.inf
    found = OrientedGradients("6x6").transform(pictures)
    assert not found[:2].any()
    assert found[2].any()


def test_flat_rows_and_channels() -> None:
    generator = np.random.default_rng(1)
    pictures = generator.integers(0, 256, size=(5, 8, 8, 3))
    features = OrientedGradients("8x8x3")
    found = features.transform(pictures)
    np.testing.assert_array_equal(features.transform(pictures.reshape(5, -1)), found)
    grey = np.repeat(pictures[..., :1], 3, axis=3)
    one = OrientedGradients("8x8").transform(pictures[..., 0])
    np.testing.assert_allclose(features.transform(grey), one, atol=1e-12)


def test_usual_numbers_of_cells() -> None:
    assert OrientedGradients("28x28").width() == 7 * 7 * 8 + 1
    assert OrientedGradients("8x8").width() == 4 * 4 * 8 + 1
    assert OrientedGradients("32x32x3").width() == 8 * 8 * 8 + 1
    assert OrientedGradients((2, 300)).width() == 2 * 8 * 8 + 1


@pytest.mark.parametrize("shape", ["28", "28x", "axb", "1x28", (28,), (28, 28.0), 5, None, "²x2"])
def test_other_shapes_are_refused(shape: Any) -> None:
    with pytest.raises(InvalidInput, match="shape"):
        picture_shape(shape)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"cells": 0}, "cells"),
        ({"cells": 29}, "cells"),
        ({"cells": (7, 7, 7)}, "cells"),
        ({"cells": 2.0}, "cells"),
        ({"orientations": 3}, "orientations"),
        ({"shape": (4096, 4096), "cells": 1}, "cells"),
    ],
)
def test_other_parameters_are_refused(parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        OrientedGradients(**{"shape": "28x28", **parameters})


def test_sums_over_cells_stay_exact() -> None:
    """The largest picture that is allowed with few cells: sums are whole numbers below 2^53."""
    features = OrientedGradients("512x512", cells=2)
    with pytest.raises(InvalidInput, match="cells"):
        OrientedGradients("2048x2048", cells=1)
    checker = np.indices((512, 512)).sum(axis=0) // 2 % 2
    one = features.transform(checker[None] * 255.0)
    both = features.transform(np.stack([checker * 0.0, checker * 255.0]))
    np.testing.assert_array_equal(one[0], both[1])


def test_digits_are_told_apart() -> None:
    """A linear model without privacy: better than on pixels."""
    datasets = pytest.importorskip("sklearn.datasets")
    from sklearn.linear_model import LogisticRegression

    digits = datasets.load_digits()
    rows = OrientedGradients("8x8").transform(digits.images)
    model = LogisticRegression(C=100, max_iter=300).fit(rows[:1200], digits.target[:1200])
    assert model.score(rows[1200:], digits.target[1200:]) > 0.95
