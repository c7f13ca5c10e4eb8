"""``expost.connect``: ask a server from Python with the words of the library.

Only the standard library is used. A call that may cost something carries a key of its own, so that
it can be repeated after a lost connection: the server returns the same answer and charges once.
Tests: ``tests/server/test_client.py``.
"""

from __future__ import annotations

import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from expost._version import __version__
from expost.errors import BudgetRefused, ExpostError, InvalidInput

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TRIES = 6
_LOST = (502, 503, 504)
_PER_CALL = 500


class ServerError(ExpostError):
    """A server did not carry out a call."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class TunedAnswer:
    """What a tuning job at a server released."""

    passed: bool
    params: Mapping[str, Any]
    score: float | None
    spent: Mapping[str, float]
    certificate: Mapping[str, Any] = field(repr=False)
    model: bytes | None = field(repr=False, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer without the model, for JSON."""
        return {
            "passed": self.passed,
            "params": dict(self.params),
            "score": self.score,
            "spent": dict(self.spent),
        }

    def save(self, folder: str | Path) -> None:
        """Write ``release.json`` and the model, if there is one, into a folder.

        The model is ``model.npz``, or ``missed-model.npz`` if it missed the goal.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.certificate, indent=2, allow_nan=False, ensure_ascii=False)
        (target / "release.json").write_text(text + "\n", encoding="utf-8")
        if self.model is not None:
            name = "model.npz" if self.passed else "missed-model.npz"
            (target / name).write_bytes(self.model)


def connect(url: str, token: str, *, timeout: float = 30.0) -> Connection:
    """Connect to a server (``expost server start``).

    Parameters
    ----------
    url : str
        The address of the server. Without HTTPS only this machine is accepted, because the token
        would travel in the clear.
    token : str
        Your token.
    timeout : float, default 30
        Seconds after which one HTTP call is given up and repeated.

    Returns
    -------
    Connection
        Ask with its methods ``count``, ``sum``, ``mean`` and ``tune``.

    Examples
    --------
    >>> server = expost.connect("https://data.example", token)     # doctest: +SKIP
    >>> server.price("visits", by="city", within=0.1)["epsilon"]      # doctest: +SKIP
    0.0482
    >>> result = server.count("visits", by="city", within=0.1)        # doctest: +SKIP
    """
    return Connection(url, token, timeout=timeout)


class Connection:
    """A connection to a server; :func:`connect` makes it."""

    def __init__(self, url: str, token: str, *, timeout: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput("url", url, "give https://host or http://localhost:8400")
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise InvalidInput("url", url, "use https: the token would travel in the clear")
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidInput("token", "this text", "give the token that the owner showed you")
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._token, self._timeout = token, timeout
        self._opener = urllib.request.build_opener(NoRedirects)

    def __repr__(self) -> str:
        return f"Connection({self._url!r})"

    def datasets(self) -> list[dict[str, Any]]:
        """Return the data sets: what may be asked, and what is left."""
        views: list[dict[str, Any]] = self._call("GET", "/api/datasets")
        return views

    def budget(self, name: str | None = None) -> Any:
        """Return one budget, or all of them."""
        return self._call("GET", "/api/budgets" + ("" if name is None else f"/{quote(name, '')}"))

    def plan(
        self,
        epsilons: Sequence[float],
        configurations: int,
        *,
        delta: float | None = None,
        repeats: int = 1,
        attempts: int | None = None,
    ) -> dict[str, Any]:
        """Plan a tuning job: chance of passing, charges and runs, as ``expost plan --json``."""
        body = {
            "epsilons": [float(level) for level in epsilons],
            "configurations": configurations,
            "delta": delta,
            "repeats": repeats,
            "attempts": attempts,
        }
        views: dict[str, Any] = self._call("POST", "/api/plan", _present(body))
        return views

    def price(self, dataset: str, kind: str = "count", **options: Any) -> dict[str, Any]:
        """Return what a question would cost, before it is asked. Nothing is charged."""
        question = _question(dataset, kind, options)
        views: dict[str, Any] = self._call("POST", "/api/price", question)
        return views

    def count(self, dataset: str, *, memo: str = "", key: str | None = None, **options: Any) -> Any:
        """Count persons (or rows) per group, each to the error you need."""
        return self._ask(_question(dataset, options.pop("kind", "count"), options), memo, key)

    def sum(
        self, dataset: str, column: str, *, memo: str = "", key: str | None = None, **options: Any
    ) -> Any:
        """Sum a column per group, within the owner's bounds; otherwise as :meth:`count`."""
        return self._ask(_question(dataset, "sum", options | {"column": column}), memo, key)

    def mean(
        self, dataset: str, column: str, *, memo: str = "", key: str | None = None, **options: Any
    ) -> Any:
        """Average a column per group, within the owner's bounds; otherwise as :meth:`count`."""
        return self._ask(_question(dataset, "mean", options | {"column": column}), memo, key)

    def quantile(
        self, dataset: str, column: str, *, memo: str = "", key: str | None = None, **options: Any
    ) -> Any:
        """Quantiles of a column per group to a rank error; otherwise as :meth:`count`."""
        return self._ask(_question(dataset, "quantile", options | {"column": column}), memo, key)

    def query(
        self, dataset: str, sql: str, *, memo: str = "", key: str | None = None, **options: Any
    ) -> Any:
        """Answer one SELECT on a data set, as :func:`expost.query`; its table is the data set."""
        return self._ask(_question(dataset, "query", options | {"sql": sql}), memo, key)

    def subgroup_errors(
        self, dataset: str, release: str, *, memo: str = "", key: str | None = None, **options: Any
    ) -> Any:
        """Average error of a released model per public subgroup: :func:`expost.subgroup_errors`.

        ``release`` is the id of the request that released the model.
        """
        return self._ask(_question(dataset, "errors", options | {"release": release}), memo, key)

    def tune(
        self, dataset: str, config: Mapping[str, Any], *, memo: str = "", key: str | None = None
    ) -> TunedAnswer:
        """Tune a model on the rows of a server."""
        tables = {name: dict(table) for name, table in config.items() if name != "data"}
        answer: TunedAnswer = self._ask(_question(dataset, "tune", tables), memo, key)
        return answer

    def requests(self) -> list[dict[str, Any]]:
        """Return your requests, newest first."""
        views: list[dict[str, Any]] = []
        page: list[dict[str, Any]] = self._call("GET", f"/api/requests?limit={_PER_CALL}")
        while page:
            views += page
            older = f"&before={page[-1]['id']}"
            page = self._call("GET", f"/api/requests?limit={_PER_CALL}{older}")
        return views

    def request(self, identity: str) -> dict[str, Any]:
        """Return one request with its status."""
        views: dict[str, Any] = self._call("GET", f"/api/requests/{quote(identity, '')}")
        return views

    def release(self, identity: str) -> Any:
        """Return the answer of a request again, at no charge."""
        release = self._call("GET", f"/api/releases/{quote(identity, '')}")
        if release["request"]["kind"] != "tune":
            return count_result(release)
        result, content = release["result"], None
        if result["passed"] or result["missed"]:
            content = self._call("GET", f"/api/releases/{identity}/model", raw=True)
        return TunedAnswer(
            result["passed"],
            result["params"],
            result["score"],
            result["spent"],
            release["certificate"],
            content,
        )

    def record(self, identity: str) -> dict[str, Any]:
        """Return all that is on record about a release: for ``expost evidence``."""
        name = quote(identity, "")
        whole: dict[str, Any] = dict(self._call("GET", f"/api/releases/{name}"))
        whole["verdict"] = self._call("GET", f"/api/releases/{name}/verify")
        with suppress(ServerError):  # a retired data set
            facts = self._call("GET", f"/api/datasets/{quote(whole['request']['dataset'], '')}")
            whole |= {"facts": facts, "budget": self.budget(facts["budget"])}
        for newest in whole["request"].get("errors", ())[:1]:
            whole["subgroups"] = self._call("GET", f"/api/releases/{newest}/certificate")
        return whole

    def _ask(self, question: Mapping[str, Any], memo: str, key: str | None) -> Any:
        """Ask and wait for the answer."""
        chosen = secrets.token_urlsafe(24) if key is None else key
        body = {"question": question, "memo": memo}
        view = self._call("POST", "/api/requests", body, {"Idempotency-Key": chosen}, (402,))
        pause = 0.02
        while view["status"] in ("queued", "running"):
            time.sleep(pause)
            pause = min(2.0, pause * 1.5)
            view = self.request(view["id"])
        if view["status"] == "refused":
            told = view["refusal"]
            raise BudgetRefused(
                told.get("budget", view["price"]["budget"]),
                told["requested"],
                told["remaining"],
                told.get("held", 0),
            )
        if view["approval"] is not None and not view["approval"]["approved"]:
            raise _not_approved(view)
        if view["status"] == "no answer":
            raise ServerError(
                500, f"request {view['id']} has no answer; the server says what was charged"
            )
        return self.release(view["id"])

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        accepted: Sequence[int] = (),
        *,
        raw: bool = False,
    ) -> Any:
        """One HTTP call, repeated while the connection is lost."""
        sent = None if body is None else json.dumps(body, allow_nan=False).encode()
        told = {
            "Authorization": f"Bearer {self._token}",
            "User-Agent": f"expost/{__version__}",
            "Accept": "application/json",
            **({} if body is None else {"Content-Type": "application/json"}),
            **(headers or {}),
        }
        for tries in range(1, _TRIES + 1):
            request = urllib.request.Request(  # noqa: S310 - only http(s): checked at the start
                self._url + path, sent, told, method=method
            )
            try:
                with self._opener.open(request, timeout=self._timeout) as response:
                    content = response.read()
                    return content if raw else json.loads(content)
            except urllib.error.HTTPError as error:
                content = error.read()
                if error.code in accepted:
                    return json.loads(content)
                if error.code not in _LOST or tries == _TRIES:
                    raise _error(error.code, content) from None
            except (OSError, ValueError) as error:  # lost, timed out, or cut off
                if tries == _TRIES:
                    kept = (headers or {}).get("Idempotency-Key")
                    hint = "" if kept is None else f"; repeat the call with key={kept!r}"
                    raise ConnectionError(
                        f"{self._url} cannot be reached ({type(error).__name__}){hint}"
                    ) from None
            time.sleep(0.1 * 2**tries)
        raise AssertionError("unreachable")


def _not_approved(view: Mapping[str, Any]) -> ServerError:
    """What is said of a question that waits for approval, or has not got it."""
    told, name = view["approval"], f"request {view['id']}"
    if view["status"] == "declined":
        return ServerError(403, f"{name} was declined by {told['by']}: {told['reason']}")
    if view["status"] == "expired":
        return ServerError(403, f"{name} expired before an owner approved it; nothing was charged")
    return ServerError(
        202,
        f"{name} waits until {told['expires']} for the approval of an owner; nothing is charged. "
        f"Afterwards fetch the answer with release({view['id']!r})",
    )


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _error(status: int, content: bytes) -> Exception:
    """The error that a server reports."""
    try:
        told = json.loads(content)
        message, name, valid = str(told["error"]), told.get("field"), told.get("valid")
    except (ValueError, KeyError, TypeError):
        return ServerError(status, f"the server answered with status {status}")
    if status == 422:
        return InvalidInput(str(name), "what was sent", str(valid or message))
    more = "" if valid is None else f": {valid}"
    return ServerError(status, f"{message}{more}")


def _question(dataset: str, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A question as the server reads it."""
    asked = _present({"dataset": dataset, "kind": kind, **options})
    for name in ("by", "where"):
        if isinstance(asked.get(name), str):
            asked[name] = [asked[name]]
    if "keys" in asked:
        asked["keys"] = [_key(key) for key in asked["keys"]]
    if isinstance(asked.get("at"), (int, float)):
        asked["at"] = [float(asked["at"])]
    for name in ("within", "plus_minus", "within_rank", "epsilon", "delta", "confidence"):
        if name in asked:
            asked[name] = float(asked[name])
    return asked


def _key(key: Any) -> Any:
    return [str(part) for part in key] if isinstance(key, (list, tuple)) else str(key)


def _present(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


def count_result(release: Mapping[str, Any]) -> Any:
    """Return a release of a server as the result of the function that asks the same here."""
    from expost.analytics.count_result import result_of_release
    from expost.analytics.quantiles import quantile_of_release
    from expost.analytics.sql_result import query_of_release

    readers = {"quantile": quantile_of_release, "query": query_of_release}
    return readers.get(release["certificate"]["kind"], result_of_release)(release)
