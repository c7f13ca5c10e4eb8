"""Candidates whose outputs and errors hold a secret: it gets out with the winner's value only."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from expost import (
    AboveThreshold,
    Candidate,
    Doubling,
    PureDP,
    RandomDropping,
    RepeatAndSelect,
    TruncatedNegativeBinomial,
)
from expost.errors import ExpostError
from expost.randomness.source import Randomness, SimulationRandomness
from tests.fuzz.profiles import examples

SECRET = "zibeben"
SELECTORS = [
    RandomDropping(0.5),
    RandomDropping(0.5, at_least=0.5),
    AboveThreshold(0.5, at_least=0.5),
    Doubling(at_least=0.5),
    RepeatAndSelect(TruncatedNegativeBinomial(1.0, 0.3)),
]


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    """Each gives a text with the secret and a score, or fails in its own way."""
    made = []
    for place in range(draw(st.integers(1, 5))):
        how = draw(st.sampled_from(["give", "raise", "raise group", "give nan", "give other"]))
        score = draw(st.floats(0, 1))

        def run(
            data: Any,
            randomness: Randomness,
            how: str = how,
            score: float = score,
            place: int = place,
        ) -> Any:
            text = f"{SECRET}{place}"
            if how == "raise":
                raise ValueError(text)
            if how == "raise group":
                raise ExceptionGroup(text, [KeyError(text)])
            return {
                "text": text,
                "score": float("nan")
                if how == "give nan"
                else text
                if how == "give other"
                else score,
            }

        made.append(
            Candidate(
                run,
                {"place": place},
                guarantee=PureDP(0.1 * (place + 1)),
                repeats=draw(st.integers(1, 3)),
            )
        )
    return made


@examples(120)
@given(selector=st.sampled_from(SELECTORS), listed=candidates(), seed=st.integers(0, 2**32))
def test_only_the_winner_is_heard(selector: Any, listed: list[Candidate], seed: int) -> None:
    """Catches an output in a message, a repr, a log line or a certificate.

    The score of a text is not a number: it is refused and not quoted.
    """
    out, err = io.StringIO(), io.StringIO()
    release, said = None, ""
    with redirect_stdout(out), redirect_stderr(err):
        try:
            release = selector.select(
                listed,
                [SECRET],
                score=lambda output: output["score"],
                randomness=SimulationRandomness(seed),
                simulation=True,
            )
        except (ExpostError, ValueError, TypeError) as error:
            said = f"{error}{error!r}{error.__cause__!r}"
    assert SECRET not in out.getvalue() + err.getvalue() + said
    if release is not None:
        assert SECRET not in release.to_json(encode=lambda value: "the value")
        winner = release.value["text"] if isinstance(release.value, dict) else "nobody"
        assert SECRET not in repr(release).replace(winner, "")
