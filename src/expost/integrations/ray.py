"""Run candidates on a Ray cluster with :class:`RayExecutor`.

The data is put into the object store once. If a worker is killed, Ray repeats its task with the
same arguments, hence with the same randomness. All tasks have the same name. docs/cluster.md
describes what a dashboard still shows.

Tests: ``tests/integrations/test_ray.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from expost.errors import InvalidInput, import_extra
from expost.execution.workers import OwnedExecutor
from expost.rationals import count_of

__all__ = ["RayExecutor"]

_NAME = "expost"
_RETRIES = 3


class RayExecutor(OwnedExecutor):
    """An executor that runs tasks on a Ray cluster.

    It uses the cluster to which this process is connected, the one at ``address``, or a new one on
    this machine. As a context manager it disconnects at the end if it was the one that connected.
    The same version of expost must be installed on every machine.

    Parameters
    ----------
    num_cpus, num_gpus : float, default 1 and 0
        What one task reserves. ``num_gpus=1`` puts one task, hence one fleet of trainings, on each
        GPU.
    address : str, optional
        Address of a running cluster, as for ``ray.init`` (which also reads RAY_ADDRESS).
    tasks : int, optional
        How many tasks a wave has; by default as many as the cluster can run at once. This number is
        public.

    Raises
    ------
    MissingExtra
        If Ray is not installed.
    InvalidInput
        If an argument is not valid, or the cluster is too small for one task.
    """

    def __init__(
        self,
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        address: str | None = None,
        tasks: int | None = None,
    ) -> None:
        ray = self._ray = import_extra("ray", "ray")
        for field, value, least in (("num_cpus", num_cpus, "> 0"), ("num_gpus", num_gpus, "≥ 0")):
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not (value > 0 or (value == 0 and least == "≥ 0"))
            ):
                raise InvalidInput(field, value, f"give a number {least}")
        wanted = None if tasks is None else count_of(tasks, "tasks", at_least=1)
        self._connected = not ray.is_initialized()
        if self._connected:
            _connect(ray, address)
        elif address is not None:
            raise InvalidInput(
                "address", address, "omit it: this process is connected to a Ray cluster already"
            )
        try:
            self.tasks = wanted or _room(ray.cluster_resources(), num_cpus, num_gpus)
        except BaseException:
            self.shutdown()
            raise
        self._functions: dict[Callable[..., Any], Any] = {}
        self._options = {
            "name": _NAME,
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "max_retries": _RETRIES,
        }

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Call a function in a worker; what :meth:`share` gave stands for the data."""
        if function not in self._functions:
            self._functions[function] = self._ray.remote(function).options(**self._options)
        reference = self._functions[function].remote(*arguments)
        future: Future[Any] = reference.future()
        future.add_done_callback(
            lambda done: self._ray.cancel(reference) if done.cancelled() else None
        )
        return future

    @contextmanager
    def share(self, data: Any) -> Iterator[Any]:
        """Put data into the object store; yield what stands for it in :meth:`submit`."""
        yield self._ray.put(data)

    def keep(self, load: Callable[[], Any]) -> Any:
        """Put a part of the data into the object store; return what stands for it in tasks."""
        return self._ray.put(load())

    def shutdown(self) -> None:
        """Disconnect if this executor connected; a cluster that it started ends."""
        if self._connected:
            self._ray.shutdown()
            self._connected = False


def _connect(ray: Any, address: str | None) -> None:
    """Connect to the cluster at ``address`` or RAY_ADDRESS, or start a local one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None and "RAY_ADDRESS" not in os.environ:
        ray.init(
            address="local", include_dashboard=False, log_to_driver=False, logging_level="error"
        )
    else:
        ray.init(address=address, log_to_driver=False, logging_level="error")


def _room(resources: dict[str, float], num_cpus: float, num_gpus: float) -> int:
    """How many tasks fit into the cluster at once."""
    room = resources.get("CPU", 0) / num_cpus
    if num_gpus:
        room = min(room, resources.get("GPU", 0) / num_gpus)
    if room < 1:
        raise InvalidInput(
            "num_cpus, num_gpus",
            (num_cpus, num_gpus),
            f"ask for less per task: the cluster has {resources.get('CPU', 0):g} CPUs "
            f"and {resources.get('GPU', 0):g} GPUs",
        )
    return int(room)
