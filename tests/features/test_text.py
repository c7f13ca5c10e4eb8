"""Hashed text: n-grams, spelling, missing texts, hashes that never change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.features import HashedText


def vector(text: Any, **parameters: Any) -> Any:
    return HashedText(4096, **parameters)._values([np.array([text], dtype=object)])[0]


def test_texts_with_common_words_are_near() -> None:
    one, two, three = (
        vector(text) for text in ("the red wine", "red wine is fine", "a green apple")
    )
    assert one @ two > 0.3 > 0.1 > abs(one @ three)
    assert vector("Programme") @ vector("program") > 0.3  # by characters
    np.testing.assert_array_equal(vector("Red  WINE\n"), vector("red wine"))


def test_words_and_characters() -> None:
    words = {"characters": None}
    assert (vector("a b", words=(1, 1), **words) != 0).sum() == 2
    assert (vector("a b", words=(1, 2), **words) != 0).sum() == 3
    assert (vector("b a", words=(1, 1), **words) == vector("a b", words=(1, 1), **words)).all()
    assert not (vector("b a", **words) == vector("a b", **words)).all()
    characters = {"words": None}
    assert (vector("ab", characters=(3, 3), **characters) != 0).sum() == 2  # " ab", "ab "
    assert (vector("ab", characters=(3, 4), **characters) != 0).sum() == 3


def test_repeated_words_count_by_their_root() -> None:
    found = vector("x x x x y", words=(1, 1), characters=None)
    counts = np.sort(np.abs(found[found != 0]))
    np.testing.assert_allclose(counts[1] / counts[0], 2)


def test_missing_and_odd_texts() -> None:
    found = HashedText(16).transform([None, "", float("nan"), "  ", 12, "12", b"12", "\ud800"])
    assert not found[:4, :-1].any()
    assert (found[:, -1] > 0).all()
    np.testing.assert_array_equal(found[4], found[5])
    np.testing.assert_array_equal(found[4], found[6])


def test_a_long_text_is_read_up_to_its_limit() -> None:
    np.testing.assert_array_equal(vector("word " * 3, limit=5), vector("word "))
    assert np.isfinite(vector("wörd " * 100_000)).all()


def test_hashes_never_change() -> None:
    """A saved model would predict something else."""
    found = HashedText(32).transform(["Red wine, 1982"])[0]
    assert np.sign(found).astype(int).tolist() == [
        1,
        0,
        -1,
        -1,
        1,
        -1,
        1,
        1,
        -1,
        0,
        0,
        0,
        -1,
        0,
        -1,
        0,
        -1,
        0,
        0,
        -1,
        -1,
        0,
        -1,
        -1,
        -1,
        -1,
        -1,
        -1,
        1,
        0,
        -1,
        1,
        1,
    ]


def test_unsigned_features_are_never_negative() -> None:
    found = HashedText(64, signed=False)._values([np.array(["some words and more"], object)])
    assert found.min() == 0
    assert (found > 0).sum() > 10


@pytest.mark.parametrize(
    "parameters",
    [
        {"signed": 1},
        {"dimension": 1},
        {"words": (2, 1)},
        {"words": 2},
        {"characters": (0, 3)},
        {"words": None, "characters": None},
        {"limit": 0},
    ],
)
def test_other_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        HashedText(**parameters)
