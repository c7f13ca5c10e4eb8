"""Parquet files that DuckDB reads itself give what Arrow's rows give, whatever is in a cell."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expost.analytics import contribution, shared_pairs
from expost.analytics.contribution import Measure, pair_sums, select, users_of
from expost.analytics.shared_pairs import Shared, run_capped
from expost.tables import file_rows
from expost.tables.sources import open_source
from expost.tables.typed_columns import fetch, held

LEADS = (0x00, 0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5)
NEXT = (0x00, 0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF)


def written(path, columns, **options):
    """Write a Parquet file, with its cells as they are."""
    pq.write_table(pa.table(columns), path, **options)
    return path


def raw_text(cells: list[bytes]) -> pa.Array:
    """A column of text that may not be UTF-8."""
    return pa.array(cells, pa.binary()).view(pa.string())


def rows_of(path, natively, columns=("t",)):
    table = open_source(path, columns=columns, natively=natively)
    return fetch(table)


def is_native(path, columns) -> bool:
    table = open_source(path, columns=columns, natively=True)
    return file_rows._FILES in vars(table.get_backend())


def odd_texts() -> list[bytes]:
    """Every kind of beginning and continuation of UTF-8, right and wrong."""
    pairs = [bytes([first, second]) for first, second in itertools.product(LEADS, NEXT)]
    longer = [pair + rest for pair in pairs[90:] for rest in (b"\x80", b"\x80\x80", b"\xbf\xbf")]
    return [*(bytes([lead]) for lead in LEADS), *pairs, *longer]


def test_both_readers_take_the_same_texts(tmp_path):
    """Otherwise one person's broken cell would decide how the cells of others are read."""
    cells = odd_texts()
    names = [f"t{number}" for number in range(len(cells))]
    path = written(tmp_path / "t.parquet", dict(zip(names, map(raw_text, zip(cells)), strict=True)))
    engine = open_source(path, columns=names[:1], natively=True).get_backend()
    native = {}
    for name in names:
        sql = f"SELECT hex({name}) FROM read_parquet('{path}')"
        try:
            native[name] = engine.raw_sql(sql).fetchall()[0][0]
        except Exception:
            native[name] = None
    arrow = rows_of(path, False, names)
    for name in names:
        cell = arrow[name][0]
        assert native[name] == (None if cell is None else cell.encode().hex().upper()), name
    assert 30 < sum(cell is None for cell in native.values()) < len(cells) - 30


def test_a_broken_cell_is_a_gap_and_changes_no_other(tmp_path):
    cells = [b"a", b"\xff", b"b", "é".encode()]
    path = written(tmp_path / "t.parquet", {"t": raw_text(cells), "n": [1, 2, 3, 4]})
    assert is_native(path, ["t", "n"])
    told = rows_of(path, True, ["t", "n"])
    assert told == {"t": ["a", None, "b", "é"], "n": [1, 2, 3, 4]}
    assert rows_of(path, False, ["t", "n"]) == told
    with held(open_source(path, columns=["t"], natively=True).select("t")) as table:
        assert sorted(fetch(table)["t"], key=str) == sorted(told["t"], key=str)


def test_statistics_of_a_file_decide_nothing(tmp_path):
    """Its statistics leave out NaN: they say that all values are at most 2."""
    path = written(tmp_path / "t.parquet", {"t": [1.0, float("nan"), 2.0]})
    table = open_source(path, columns=["t"], natively=True)
    assert is_native(path, ["t"])
    known = (table.t.abs() <= 1e300).ifelse(table.t, None)
    assert fetch(table.select(t=known))["t"] == [1.0, None, 2.0]
    assert len(fetch(table.filter(table.t > 5))["t"]) == 1  # NaN is the largest number


@pytest.mark.parametrize(
    ("column", "native"),
    [
        (pa.array([1, 2], pa.int8()), True),
        (pa.array([1, 2], pa.uint64()), True),
        (pa.array([1.5, None], pa.float32()), True),
        (pa.array([True, None]), True),
        (pa.array(["a", None]).dictionary_encode(), True),
        (pa.array([1, 2], pa.timestamp("us")), False),
        (pa.array([1, 2], pa.date32()), False),
        (pa.array([1, 2], pa.decimal128(5, 2)), False),
    ],
)
def test_only_plain_columns_are_read_natively(tmp_path, column, native):
    path = written(tmp_path / "t.parquet", {"t": column})
    assert is_native(path, ["t"]) is native
    assert rows_of(path, True) == rows_of(path, False)


def test_columns_that_differ_between_files_are_read_by_arrow(tmp_path):
    for name, cells in (("a", pa.nulls(1)), ("b", [1])):
        written(tmp_path / f"{name}.parquet", {"t": cells})
    assert not is_native(tmp_path, ["t"])
    (tmp_path / "g=x").mkdir()
    path = written(tmp_path / "g=x" / "a.parquet", {"t": [1]})
    assert not is_native(path, ["t"])  # the folder is a column


def pairs_of(people: int = 300):
    """Rows of people in up to 12 groups, with text or whole numbers as names."""
    random = np.random.default_rng(5)
    size = 8 * people
    return {
        "u": random.integers(-people, people, size),
        "g": [f"g{number}" for number in random.integers(0, 12, size)],
        "v": random.integers(-40, 90, size).astype(float),
    }


@pytest.mark.parametrize("names", ["numbers", "texts"])
@pytest.mark.parametrize("kind", ["users", "rows", "sum"])
def test_values_in_parts_are_those_of_one_query(tmp_path, kind, names):
    """Numbers of groups, parts of users and sums of 64 bits change nothing."""
    columns = pairs_of()
    if names == "texts":
        columns["u"] = [f"é{number}" for number in columns["u"]]
    table = open_source(
        written(tmp_path / "t.parquet", columns), columns=list(columns), natively=True
    )
    measure = {
        "users": Measure(),
        "rows": Measure("rows", rows=2),
        "sum": Measure("sum", "v", low=-20, high=50, amount=60),
    }[kind]
    rows = select(table, ["g"], "u", measure)
    keys = [f"g{number}" for number in (7, 10, 2, 0, 3, 11, 1, 99)]
    plain = contribution.measured(rows, measure, keys, "salt", collated=False)
    for most, limit in ((2, 2), (2, 700), (5, 3), (None, None), (None, 40), (8, 8)):
        wanted = contribution.run_totals(contribution.totals(plain, most, "salt", limit))
        parts = [
            pair_sums(rows, measure, keys, collated=False, numbered=True, part=(number, 2))
            for number in range(2)
        ]
        with held(*parts) as pairs, held(users_of(pairs)) as users:
            told = run_capped(Shared(pairs, users), measure, most, "salt", limit, keys)
        assert told.on(keys).first.tolist() == wanted.on(keys).first.tolist()
        assert told.on(keys).users.tolist() == wanted.on(keys).users.tolist()
        assert (told.kept, told.removed) == (wanted.kept, wanted.removed)


def test_values_are_those_of_plain_python(tmp_path):
    """The kept groups by their definition: the smallest hashes of salt, user and name."""
    import hashlib

    columns = pairs_of()
    table = open_source(
        written(tmp_path / "t.parquet", columns), columns=list(columns), natively=True
    )
    keys = [f"g{number}" for number in range(9)]
    rows = select(table, ["g"], "u", Measure())
    groups: dict[int, set[str]] = {}
    for user, group in zip(columns["u"], columns["g"], strict=True):
        if group in keys:
            groups.setdefault(int(user), set()).add(group)

    def digest(user: int, group: str) -> tuple[str, str]:
        text = f"salt\x1f{user}\x1f{group}"
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:12], group

    counts = dict.fromkeys(keys, 0)
    for user, mine in groups.items():
        for group in sorted(mine, key=lambda name: digest(user, name))[:3]:
            counts[group] += 1
    with held(pair_sums(rows, Measure(), keys, collated=False, numbered=True)) as pairs:
        shared = Shared(pairs, users_of(pairs))
        told = run_capped(shared, Measure(), 3, "salt", 3, keys)
    assert told.on(keys).first.tolist() == list(counts.values())
    sizes = [len(mine) for mine in groups.values()]
    assert told.kept == (sum(min(size, 3) for size in sizes),)
    assert told.removed == (sum(min(max(size - 3, 0), 3) for size in sizes),)
    assert max(sizes) > 6


def test_what_is_large(tmp_path):
    """Only the size of one file is looked at; an address may be longer than a file name."""
    small, folder = tmp_path / "a.csv", tmp_path / "*.csv"
    small.write_text("u\n1\n")
    assert not shared_pairs._is_large(small)
    assert not shared_pairs._is_large(str(small))
    for other in (folder, f"postgresql://u:{'x' * 400}@host/db", pa.table({"u": [1]})):
        assert shared_pairs._is_large(other)
