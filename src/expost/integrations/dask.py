"""Run candidates on a Dask cluster with :class:`DaskExecutor`.

The data is scattered once. If a worker dies, the scheduler repeats its task with the same
arguments, hence with the same randomness. The keys of tasks are "expost" and random digits.
docs/cluster.md describes what a dashboard still shows.

Tests: ``tests/integrations/test_dask.py``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from expost.errors import InvalidInput, import_extra
from expost.execution.workers import OwnedExecutor
from expost.rationals import count_of

__all__ = ["DaskExecutor"]


class DaskExecutor(OwnedExecutor):
    """An executor that runs tasks on a Dask cluster.

    As a context manager it disconnects at the end if it was the one that connected. The same
    version of expost must be installed on every machine.

    Parameters
    ----------
    client_or_address : distributed.Client or str, optional
        A client, or the address of a scheduler. By default the cluster that Dask's own settings
        name, or else a new one on this machine.
    tasks : int, optional
        How many tasks a wave has; by default the number of threads of all workers. This number is
        public.

    Raises
    ------
    MissingExtra
        If distributed is not installed.
    InvalidInput
        If an argument is not valid.
    """

    def __init__(self, client_or_address: Any = None, *, tasks: int | None = None) -> None:
        Client = import_extra("distributed", "distributed", "dask").Client
        wanted = None if tasks is None else count_of(tasks, "tasks", at_least=1)
        if not (client_or_address is None or isinstance(client_or_address, (str, Client))):
            raise InvalidInput(
                "client_or_address",
                type(client_or_address).__name__,
                "give a distributed.Client or the address of a scheduler",
            )
        given: Any = client_or_address
        self._connected = not isinstance(given, Client)
        self._client: Any = _connect(Client, given) if self._connected else given
        self.tasks = wanted or max(1, sum(self._client.nthreads().values()))

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Call a function in a worker; what :meth:`share` gave stands for the data."""
        arguments = tuple(
            argument.future() if isinstance(argument, _Scattered) else argument
            for argument in arguments
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
        """Put data on the cluster; yield what stands for it in :meth:`submit`."""
        yield _Scattered(self._client, lambda: data, everywhere=True)

    def keep(self, load: Callable[[], Any]) -> Any:
        """Put a part of the data on one worker; return what stands for it in tasks."""
        return _Scattered(self._client, load, everywhere=False)

    def shutdown(self) -> None:
        """Disconnect if this executor connected."""
        if self._connected:
            self._client.close()


def _connect(client: Any, address: str | None) -> Any:
    """A client of the cluster at ``address``, of the configured one, or of a new local one."""
    from dask import config

    if address is not None or config.get("scheduler-address", None) is not None:
        return client(address, set_as_default=False)
    return client(set_as_default=False, threads_per_worker=1, dashboard_address=None)


class _Scattered:
    """Data on the workers. It is scattered again if it was lost: only this process has it still."""

    def __init__(self, client: Any, load: Callable[[], Any], *, everywhere: bool) -> None:
        self._client, self._load, self._everywhere = client, load, everywhere
        self._future: Any = None

    def future(self) -> Any:
        """The Dask future of the data."""
        if self._future is None or self._future.status != "finished":
            whole = [self._load()]  # scatter would split data that is a list
            (self._future,) = self._client.scatter(whole, broadcast=self._everywhere, hash=False)
        return self._future


def _pass_on(remote: Any, future: Future[Any]) -> None:
    """Copy the result or the error of Dask's future to the future that ``submit`` returned."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = remote.result()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
