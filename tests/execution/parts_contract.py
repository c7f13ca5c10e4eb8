"""What every executor must do with the parts of a data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expost.errors import WorkersLost
from expost.execution.parts import Parts, for_each

SECRET = "the row of Ada Lovelace"


def summed(part: Any, factor: int) -> int:
    return int(part.sum()) * factor


def die(part: Any, folder: str, times: int) -> int:
    """End the process at the first calls for one of the parts."""
    deaths = len(list(Path(folder).iterdir()))
    if part[0] == 0 and deaths < times:
        (Path(folder) / str(deaths)).touch()
        os._exit(1)
    return int(part.sum())


def fail(part: Any) -> int:
    raise ValueError(SECRET)


def filled(executor: Any, size: int = 7, **settings: Any) -> Parts:
    """The numbers from 0 to 999 in parts."""
    parts = Parts(executor, **settings)
    for_each(parts.add, iter(np.array_split(np.arange(1000), size)))
    return parts


class PartsContract:
    """Tests of an executor, which subclasses give as a fixture; ``separate``: in processes."""

    separate = True

    def test_every_part_counts_once(self, executor: Any) -> None:
        for size in (1, 3, 1000):
            with filled(executor, size) as parts:
                assert sum(parts.map(summed, 3)) == 3 * 499500
                assert sum(parts.map(summed, 1)) == 499500
        with Parts(executor) as parts:
            assert not list(parts.map(summed, 1))

    def test_a_part_whose_worker_was_killed_is_sent_again(
        self, executor: Any, tmp_path: Path
    ) -> None:
        if not self.separate:
            pytest.skip("these workers are threads of this process")
        with filled(executor) as parts:
            assert sum(parts.map(die, str(tmp_path), 1)) == 499500
            assert len(list(tmp_path.iterdir())) == 1
            assert sum(parts.map(summed, 1)) == 499500

    def test_what_fails_again_and_again_is_reported_without_its_text(
        self, executor: Any, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with filled(executor) as parts:
            with pytest.raises(WorkersLost) as caught:
                list(parts.map(fail))
            error: BaseException | None = caught.value
            while error is not None:
                assert SECRET not in str(error)
                error = error.__cause__ or error.__context__
            assert sum(parts.map(summed, 1)) == 499500
        said = capfd.readouterr()
        assert SECRET not in said.out + said.err
