"""A question that was paid for is not paid again: answers kept beside the ledger.

With a ledger in a file and a version of the table that its owner states (``table_version``), the
same question on the same version returns the paid answer, marked as such, at no charge. Whether an
answer is there depends on public facts alone: the ledger, the budget, the source's name, the stated
version and the question. The rows are not read, so that no row changes whether an answer is found;
a digest of the rows would tell whether one of them has changed. The owner states a new version when
the table changes; an old answer stays right for its version. Repeating a released answer is
post-processing: it needs no charge.

Answers are released values, kept in files that only their owner may read; simulations are not kept.
Tests: ``tests/analytics/test_asked_before.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expost.analytics.count_result import CountResult, result_of_release
from expost.analytics.request import completed
from expost.budget.charging import Account
from expost.errors import InvalidInput
from expost.files import canonical, read_small, require_private


@dataclass(frozen=True)
class KeptAnswer:
    """The file of the answer to one question on one version of a table."""

    path: Path

    def find(self) -> CountResult | None:
        """Return the paid answer, marked; None if the question was not asked before."""
        if not self.path.is_file():
            return None
        require_private(self.path, "table_version")
        release = json.loads(read_small(self.path, "table_version"))
        return replace(result_of_release(release), asked_before=True)

    def keep(self, result: CountResult) -> None:
        """Write the answer to a file that only its owner may read, at once or not at all."""
        release = {"result": result.as_dict(), "certificate": result.certificate()}
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        part = self.path.with_suffix(f".{secrets.token_hex(8)}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(release, stream, allow_nan=False)
        part.replace(self.path)


def kept_answer(
    account: Account, data: Any, options: Mapping[str, Any], version: str | None
) -> KeptAnswer | None:
    """Return where the answer to a question is kept; None if no version is stated."""
    if version is None:
        return None
    path = getattr(account.ledger, "path", None)
    if account.ledger is None or path is None:
        raise InvalidInput("table_version", version, "it belongs to a ledger in a file: pass one")
    if not isinstance(version, str) or not version.strip():
        raise InvalidInput("table_version", version, "give a text that names the version")
    asked = completed(options)
    source = str(Path(data).resolve()) if _is_file(data) else f"{type(data).__name__}: {data}"
    if not isinstance(data, (str, Path)):
        source = type(data).__name__
    question = {name: _plain(value) for name, value in asked.items()}
    facts = [account.ledger.identity, account.budget, source, version, question]
    digest = hashlib.sha256(canonical(facts).encode()).hexdigest()
    return KeptAnswer(Path(f"{path}.answers") / f"{digest}.json")


def _is_file(data: Any) -> bool:
    """Whether a source is a path, not a connection URL."""
    return isinstance(data, Path) or (isinstance(data, str) and "://" not in data)


def _plain(value: Any) -> Any:
    """A setting for a digest: text, numbers and lists of them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple, set, range)):
        return [_plain(member) for member in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
