"""Runs on a Dask cluster: :class:`DaskExecutor`.

Data is scattered once. A task whose worker dies is made again by the scheduler with the same arguments, hence the same randomness. Keys are
"expost" and random digits. docs/cluster.md says what a dashboard still shows. Tests: ``tests/integrations/test_dask.py``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from expost.errors import InvalidInput, MissingExtra
from expost.rationals import count_of

__all__ = ["DaskExecutor"]


class DaskExecutor:
    """An executor on a Dask cluster: ``client_or_address``, or one on this machine (or where Dask's own settings point).

    ``tasks``  how many tasks a wave has (default: the threads of all workers). A public number

    As a context manager it disconnects at the end, if it was the one that connected. The same expost must be installed on every machine.
    """

    def __init__(self, client_or_address: Any = None, *, tasks: int | None = None) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise MissingExtra("distributed", "dask") from None
        wanted = None if tasks is None else count_of(tasks, "tasks", at_least=1)
        if not (client_or_address is None or isinstance(client_or_address, (str, Client))):
            raise InvalidInput(
                "client_or_address",
                type(client_or_address).__name__,
                "give a distributed.Client or a scheduler's address",
            )
        given: Any = client_or_address
        self._connected = not isinstance(given, Client)
        self._client: Any = _connect(Client, given) if self._connected else given
        self.tasks = wanted or max(1, sum(self._client.nthreads().values()))

    def __enter__(self) -> DaskExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Call a function in a worker."""
        arguments = tuple(
            each.future() if isinstance(each, _Scattered) else each for each in arguments
        )
        remote = self._client.submit(
            function, *arguments, key=f"expost-{secrets.token_hex(16)}", pure=False
        )
        future: Future[Any] = Future()
        future.add_done_callback(lambda done: remote.cancel() if done.cancelled() else None)
        remote.add_done_callback(lambda done: _pass_on(done, future))
        return future

    @contextmanager
    def share(self, data: Any) -> Iterator[Any]:
        """What stands for the data among the arguments of :meth:`submit`."""
        yield _Scattered(self._client, data)

    def shutdown(self) -> None:
        """Disconnect, if this executor connected."""
        if self._connected:
            self._client.close()


def _connect(client: Any, address: str | None) -> Any:
    from dask import config

    if address is not None or config.get("scheduler-address", None) is not None:
        return client(address, set_as_default=False)
    return client(
        set_as_default=False, threads_per_worker=1, dashboard_address=None
    )  # a cluster of its own


class _Scattered:
    """Data on the workers; scattered again if it was lost with them, since only the client could make it again."""

    def __init__(self, client: Any, data: Any) -> None:
        self._client, self._data = client, data
        self._future: Any = None

    def future(self) -> Any:
        if self._future is None or self._future.status != "finished":
            whole = [self._data]  # a list alone would be taken apart
            (self._future,) = self._client.scatter(whole, broadcast=True, hash=False)
        return self._future


def _pass_on(remote: Any, future: Future[Any]) -> None:
    """The end of Dask's future to the one that was handed out."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = remote.result()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
