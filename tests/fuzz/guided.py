"""Coverage-guided fuzzing with atheris (``pip install atheris``; Linux): the same checks.

The inputs are bytes that evolve towards new branches. Run
``python -m tests.fuzz.guided TARGET -max_total_time=60``, where TARGET is one of tune, count,
certificate, url. Further arguments are passed to libFuzzer.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import atheris

with atheris.instrument_imports(include=["expost", "tomllib", "csv", "json"]):
    from expost import PureDP
    from expost.budget.ledger import Ledger
    from tests.fuzz.command import FORESEEN, Books, expost
    from tests.fuzz.test_certificates import RECORD
    from tests.fuzz.test_count_sources import CANARY, TABLE, first_line
    from tests.fuzz.test_ledger_urls import PASSWORD
    from tests.fuzz.test_tune_documents import Planned, planned
    from tests.tuning.jobs import TOML, write

FOLDER = Path(tempfile.mkdtemp(prefix="expost-fuzz"))


def tune(content: bytes) -> None:
    (FOLDER / "job.toml").write_bytes(content)
    with mock.patch("expost.tuning.job.make_candidates", planned):
        try:
            done = expost("tune", str(FOLDER / "job.toml"), "--out", str(FOLDER / "out"))
        except Planned:
            return
    assert done.code == 2, done
    assert not (FOLDER / "out").exists()


def count(content: bytes) -> None:
    (FOLDER / "table.csv").write_bytes(content)
    before = Books.of(FOLDER / "ledger.db")
    words = [
        "--by=g",
        "--user=u",
        "--epsilon=1e-6",
        f"--keys={FOLDER / 'keys.txt'}",
        f"--ledger={FOLDER / 'ledger.db'}",
        "--json",
    ]
    done = expost("count", str(FOLDER / "table.csv"), *words)
    after = Books.of(FOLDER / "ledger.db")
    assert done.code in (0, 2, 3), done
    assert after.finished - before.finished == (1 if done.code == 0 else 0)
    assert CANARY not in done.text or CANARY.encode() in first_line(content), done


def certificate(content: bytes) -> None:
    (FOLDER / "release.json").write_bytes(content)
    for words in ([], ["--json"]):
        assert expost("certificate", str(FOLDER / "release.json"), *words).code in (0, 2)


def url(content: bytes) -> None:
    text = content.decode("utf-8", "surrogateescape")
    if "postgres" not in text.lower() or "localhost:1" in text:  # asks no server that there may be
        done = expost("ledger", "show", "--json", "--", text)
        assert done.code in FORESEEN, done
        assert PASSWORD not in done.err or not re.match(rf"[^/]*:.*{PASSWORD}.*@", text), done


SEEDS: dict[Callable[[bytes], None], bytes] = {
    tune: TOML.encode(),
    count: TABLE,
    certificate: json.dumps(RECORD).encode(),
    url: f"postgresql://u:{PASSWORD}@localhost:1/db?sslmode=x".encode(),
}


def main() -> None:
    """Fuzz the named target from its seed."""
    os.chdir(FOLDER)
    target = (
        next((each for each in SEEDS if each.__name__ == sys.argv[1]), None)
        if len(sys.argv) > 1
        else None
    )
    if target is None:
        sys.exit(__doc__)
    write(FOLDER)
    Ledger.create(FOLDER / "ledger.db", PureDP(1000), "people")
    (FOLDER / "keys.txt").write_text("a\nb\n")
    (FOLDER / "seeds").mkdir()
    (FOLDER / "seeds" / target.__name__).write_bytes(SEEDS[target])
    atheris.Setup([sys.argv[0], *sys.argv[2:], str(FOLDER / "seeds")], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
