"""Find functions of the user (a torch module, a metric, features) and keep their code apart.

``model.kind`` is ``"module:name"`` or ``"file.py:name"``, or in Python a function or a class. A
module that lies in the folder of the job is loaded from its file under a private name, so that two
jobs whose modules have the same name each get their own. Modules of the same folder that it imports
are kept with it. ``sys.path`` and ``sys.modules`` are left as they were. Workers load the same file
again.

The code of the module, of the modules it imports from its folder, and the arguments of the function
are part of the identity of a job: a checkpoint of another version is refused.

Tests: ``tests/tuning/test_factories.py``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import product
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from expost.errors import InvalidInput, MissingExtra

_MOST_ARCHITECTURES = 100  # each is tried on made-up rows
_OF_TRAINING = {"epsilon", "learning_rate", "epochs", "batch_size", "clip", "optimiser", "schedule"}
_OF_TRAINING |= {"weight_decay", "class_weights", "features", "noise_multiplier"}
MODEL = "model"  # the name of the axis of modules among searched arguments
_lock = threading.RLock()  # sys.path and sys.modules belong to the whole process


@dataclass(frozen=True, eq=False)
class NamedCode:
    """A function of the user: given, or found by its name and loaded again by every process."""

    key: ClassVar[str] = "model.kind"  # of a job, for messages
    name: str
    folder: Path = field(default_factory=Path)
    given: Callable[..., Any] | None = None
    _found: dict[str, Any] = field(default_factory=dict, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.given is not None:
            self._found.update(function=self.given, siblings={}, code="")
            return
        try:
            module, siblings, code = load_code(self.name, self.folder)
            function = named(module, self.name.rpartition(":")[2], self.name)
        except InvalidInput as error:
            raise InvalidInput(self.key, error.value, error.valid) from None
        self._found.update(function=function, siblings=siblings, code=code)

    def inside(self) -> AbstractContextManager[None]:
        """Return a context in which modules of the folder can be imported."""
        if self.given is not None:
            return nullcontext()
        return own_modules(self.folder, self._found["siblings"])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was loaded: workers load the file again."""
        return {**vars(self), "_found": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the function and load its module."""
        vars(self).update(state)
        self.__post_init__()

    def checkpoint_identity(self) -> Any:
        """Return what identifies the function."""
        return [self.name, self._found["code"], self._found["function"]]


@dataclass(frozen=True, eq=False)
class ModuleFactory(NamedCode):
    """A function that makes the torch module of a job, with its arguments."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    integers: bool = False

    def __post_init__(self) -> None:
        need_torch()
        super().__post_init__()

    def __call__(self) -> Any:
        """Return a new module."""
        with self.inside():
            module = self._found["function"](**self.arguments)
        if self.integers and hasattr(module, "register_forward_pre_hook"):
            module.register_forward_pre_hook(_to_integers)
        return module

    def checkpoint_identity(self) -> Any:
        """Return what identifies the modules that this factory makes."""
        return [*super().checkpoint_identity(), dict(self.arguments), self.integers]

    @property
    def signature(self) -> str:
        """The parameters of the function, for messages."""
        try:
            return str(inspect.signature(self._found["function"]))
        except (TypeError, ValueError):
            return "(…)"


@dataclass(frozen=True, eq=False)
class FeatureFunction(NamedCode):
    """A function of one row, or one that returns an encoder, for features of a job or a model.

    Features write it under ``name`` (:class:`expost.features.Function`).
    """

    key: ClassVar[str] = "features (function)"

    def __post_init__(self) -> None:
        super().__post_init__()
        module, _, name = self.name.rpartition(":")
        vars(self).update(__module__=module, __qualname__=name)

    def __call__(self, *row: Any) -> Any:
        try:
            return self._found["function"](*row)
        except ImportError:  # it imports a module of its folder when it is called
            with self.inside():
                return self._found["function"](*row)


def factory_of(
    kind: str,
    folder: Path,
    *,
    given: Callable[..., Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    integers: bool = False,
) -> ModuleFactory:
    """Return the factory of a model that is not linear."""
    need_torch()
    if kind == "cnn" and given is None:
        from expost.training._torch.modules import mnist_cnn

        given = mnist_cnn
    return ModuleFactory(kind, folder.resolve(), given, dict(arguments or {}), integers)


def architectures_of(request: Any) -> list[dict[str, Any]]:
    """Return every combination of the modules and arguments that are searched."""
    lists = dict(request.search_arguments or {})
    if request.models is None and isinstance(request.model, str) and ":" not in request.model:
        request.refuse("search_arguments", "only a module of your own has arguments; leave it out")
    if request.models is not None:
        names = tuple(map(_named, request.models))
        if _named(request.model) not in names:
            request.refuse("models", "model.kind must be one of them; or leave model.kind out")
        if len(set(names)) < len(names):
            request.refuse("models", "two of them have one name; give functions by other names")
        if MODEL in lists:
            request.refuse("search_arguments", "the list of models is search.model already")
        lists = {MODEL: names, **lists}
    twice = set(lists) & {*_OF_TRAINING, *(request.arguments or {})}
    if twice or prod(map(len, lists.values())) > _MOST_ARCHITECTURES:
        request.refuse(
            "search_arguments",
            f"give at most {_MOST_ARCHITECTURES} combinations, and names that neither "
            "model.arguments nor a setting of training has",
        )
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def functions_by_name(request: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions among the modules that are searched, by name."""
    return {name_of(model): model for model in request.models or () if callable(model)}


def with_arguments(
    factory: Any, arguments: Mapping[str, Any], others: Mapping[str, Callable[..., Any]]
) -> ModuleFactory:
    """Return a factory with further arguments, and of another module where they name one."""
    further = dict(arguments)
    kind = further.pop(MODEL, factory.name)
    given = factory.given if kind == factory.name else others.get(kind)
    together = {**factory.arguments, **further}
    other: ModuleFactory = replace(factory, name=kind, given=given, arguments=together, _found={})
    return other


def _named(model: Any) -> str:
    return name_of(model) if callable(model) else str(model)


def takes(function: Callable[..., Any] | None, arguments: Mapping[str, Any]) -> bool:
    """Return whether a function takes these keyword arguments; True where that is not known."""
    if function is None:
        return True
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def name_of(given: Any) -> str:
    """Return a public name of a function or a class that is passed as a model."""
    inner = getattr(given, "func", given)  # functools.partial
    module = getattr(inner, "__module__", None) or "python"
    name = getattr(inner, "__qualname__", None) or type(inner).__name__
    return f"{module}:{name}"


def need_torch() -> None:
    """Raise ``MissingExtra`` if torch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("torch", "torch") from None


def _to_integers(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert the rows to whole numbers, which embeddings take."""
    import torch

    rows = arguments[0]
    whole = rows.round() if rows.is_floating_point() else rows
    return (whole.to(torch.int64), *arguments[1:])


def named(module: Any, name: str, kind: str) -> Callable[..., Any]:
    """Return a function of a module; ``name`` may be dotted."""
    member: Any = module
    for part in name.split("."):
        member = getattr(member, part, None)
    if not callable(member):
        close = get_close_matches(name, [var for var in vars(module) if var[:1] != "_"], n=2)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise InvalidInput(
            "model.kind", kind, f"the module has no function or class {name!r}{hint}"
        )
    return member  # type: ignore[no-any-return]


def load_code(kind: str, folder: Path) -> tuple[ModuleType, dict[str, ModuleType], str]:
    """Return a module, the modules of its folder that it imported, and a hash of their code."""
    module = kind.rpartition(":")[0]
    try:
        path = _file_of(module, folder)
        if path is None:
            return importlib.import_module(module), {}, ""
        return _from_file(path, folder)
    except InvalidInput:
        raise
    except ImportError as error:
        raise InvalidInput(
            "model.kind",
            kind,
            f"the module cannot be imported: {error.name or module!r} was not found; "
            f"put the file in {str(folder)!r}, or install the package",
        ) from None
    except Exception as error:  # the module can raise anything; no data is near
        raise InvalidInput(
            "model.kind", kind, f"importing the module raises {type(error).__name__}: {error}"
        ) from None


def _file_of(module: str, folder: Path) -> Path | None:
    """Return the file of a module in the folder of the job; None if it is elsewhere."""
    if module.endswith(".py"):
        path = (folder / module).resolve()
        if not path.is_file():
            raise InvalidInput("model.kind", module, "there is no such file")
        return path
    base = folder.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if module.replace(".", "").isidentifier() and path.is_file():
            return path.resolve()
    return None


def _from_file(path: Path, folder: Path) -> tuple[ModuleType, dict[str, ModuleType], str]:
    """Load a file as a module under a private name."""
    source = path.read_bytes()
    name = "_expost_model_" + hashlib.sha256(str(path).encode() + source).hexdigest()[:16]
    search = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search)
    if spec is None:
        raise InvalidInput("model.kind", path.name, "this is not a file of Python code")
    module = importlib.util.module_from_spec(spec)
    siblings: dict[str, ModuleType] = {name: module}
    with own_modules(path.parent, siblings), own_modules(folder, siblings):
        # Compiled here, not by the import system: its cache may miss a change within a second.
        code = compile(source, str(path), "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102 - the job names its own code
    codes = [hashlib.sha256(source).hexdigest()]
    for other in sorted(set(siblings) - {name}):
        file = getattr(siblings[other], "__file__", None)
        if file is not None:
            codes.append(f"{other} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}")
    return module, siblings, "\n".join(codes)


@contextmanager
def own_modules(folder: Path, siblings: dict[str, ModuleType]) -> Iterator[None]:
    """Import from ``folder`` inside the block; afterwards path and modules are as before.

    ``siblings`` are the modules of the folder that were imported so far; new ones are added.
    """
    home = folder.resolve()
    with _lock:
        tops = _importable(home)
        hidden = {
            name: module
            for name, module in sys.modules.items()
            if name in siblings or (name.partition(".")[0] in tops and not _is_of(module, home))
        }
        for name in hidden:
            del sys.modules[name]
        before = set(sys.modules)
        sys.modules.update(siblings)
        sys.path.insert(0, str(home))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(str(home))
            for name in set(sys.modules) - before:
                if name in siblings or _is_of(sys.modules[name], home):
                    siblings[name] = sys.modules.pop(name)
            sys.modules.update(hidden)


def _importable(folder: Path) -> set[str]:
    """Return the names of the modules and packages in a folder, except names of Python's own."""
    names = {path.stem for path in folder.glob("*.py")}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    return names - sys.stdlib_module_names - {"__main__"}


def _is_of(module: Any, folder: Path) -> bool:
    """Return whether a module was imported from the folder itself, not from a library in it."""
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "")
    if file is None:
        return False
    base = folder.joinpath(*name.split("."))
    return Path(file).resolve() in (base.with_suffix(".py"), base / "__init__.py")
