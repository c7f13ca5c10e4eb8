"""Sphinx configuration of the documentation site (``make docs``).

Pages are Markdown (MyST). The API reference is generated from docstrings. The built site loads
nothing from other hosts: fonts, scripts and the search index are all local files.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from docutils.nodes import literal_block  # noqa: E402

import expost  # noqa: E402

PUBLIC_MODULES = (
    "expost",
    "expost.training",
    "expost.features",
    "expost.sklearn",
    "expost.audit",
    "expost.budget",
    "expost.privacy",
    "expost.errors",
    "expost.integrations.dask",
    "expost.integrations.dp_accounting",
    "expost.integrations.loggers",
    "expost.integrations.opacus",
    "expost.integrations.opendp",
    "expost.integrations.optuna",
    "expost.integrations.ray",
    "expost.integrations.spark",
    "expost.integrations.transformers",
)
"""Modules whose public names stand in the API reference (docs/reference/index.md)."""

project = "expost"
author = "The expost authors"
copyright = author
release = version = expost.__version__
language = "en-GB"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_templates", "results"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"expost {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5a8a",
        "color-brand-content": "#0b5a8a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7cc4ee",
        "color-brand-content": "#7cc4ee",
    },
}
pygments_style = "default"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

nitpick_ignore_regex = [(r"py:.*", r"(?!expost\b).*")]
"""Names of other packages are not linked: the site is built without network."""


def _public_names() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Find where every public object is documented: once, in the first module that lists it.

    Returns a map from the name under which an object is defined to its public name, and for each
    module the names that it lists but that are documented elsewhere.
    """
    homes: dict[str, str] = {}
    places: dict[int, str] = {}
    repeated: dict[str, dict[str, str]] = {}
    for module in PUBLIC_MODULES:
        loaded = import_module(module)
        for name in getattr(loaded, "__all__", None) or _defined(loaded):
            value = getattr(loaded, name)
            setattr(loaded, name, value)  # autodoc does not see names that are loaded at first use
            place = places.setdefault(id(value), f"{module}.{name}")
            if place != f"{module}.{name}":
                repeated.setdefault(module, {})[name] = place
            home, inner = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
            if home and inner:
                homes.setdefault(f"{home}.{inner}", place)
    return homes, repeated


def _defined(module: Any) -> list[str]:
    """Names that a module without ``__all__`` defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


_PUBLIC, _repeated = _public_names()
autosummary_context = {"repeated": _repeated}


def _exists(target: str) -> bool:
    """Whether a dotted name can be imported, wherever the module part of it ends."""
    parts = target.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: Any = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for name in parts[cut:]:
            if not hasattr(value, name):
                return False
            value = getattr(value, name)
        return True
    return False


def _resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Link a name to its public page; leave names that exist but are private as plain text.

    A reference to something in expost that does not exist stays a warning, hence an error.
    """
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    here = node.get("py:module") or ""
    for candidate in (target, f"{here}.{target}"):
        home, _, rest = candidate.rpartition(".")
        for name in (_PUBLIC.get(candidate), f"{_PUBLIC[home]}.{rest}" if home in _PUBLIC else ""):
            found = name and env.get_domain("py").resolve_xref(
                env, node.get("refdoc", ""), app.builder, node["reftype"], name, node, content
            )
            if found:
                return found
    return content if target.startswith("expost") and _exists(target) else None


def _plain_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: Any
) -> tuple[str, Any] | None:
    """Drop memory addresses from defaults, so that two builds give the same pages."""
    return signature and (re.sub(r" at 0x[0-9a-f]+", "", signature), returns)


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn adds to its estimators for metadata routing."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


_COLON = "\ue000"


def _hide_colon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from reading "A fingerprint: the hash" of a property as type and text."""
    if what in ("attribute", "data", "property") and lines:
        lines[0] = re.sub(r":(?= )", _COLON, lines[0])


def _show_colon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo :func:`_hide_colon` after napoleon has run."""
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def _list_parts(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show the aligned lists of a module docstring (``name``, spaces, text) as bullet lists."""
    if what != "module" or any(re.match(r" *=+ +=+", line) for line in lines):
        return  # a table is shown as one already
    indent: str | None = None
    for place, line in enumerate(lines):
        found = re.match(r"( *)(``[^`]+``)  +(\S.*)", line)
        if found:
            indent = found[1]
            lines[place] = f"{indent}* {found[2]}: {found[3]}"
        elif indent is not None and line.startswith(indent + "    "):
            lines[place] = f"{indent}  {line.strip()}"  # the item goes on
        else:
            indent = None


def _pages_outside(app: Any, docname: str, source: list[str]) -> None:
    """Point links at files of the repository to the pages that include them."""
    for file, page in (
        ("../benchmarks/README.md", "project/benchmarks.md"),
        ("../CONTRIBUTING.md", "project/contributing.md"),
        ("../CHANGELOG.md", "project/changelog.md"),
    ):
        source[0] = source[0].replace(f"]({file}", f"]({page}")


def _included(app: Any, path: Path, docname: str, source: list[str]) -> None:
    """Point links at files beside an included one to the pages that include them."""
    source[0] = source[0].replace("](CHANGELOG.md", "](docs/project/changelog.md")


def _wrap_screens(app: Any, doctree: Any) -> None:
    """Mark screens without a table: on a phone their lines wrap, while tables scroll."""
    for block in doctree.findall(literal_block):
        if block.get("language") in ("console", "text") and not re.search("[─━│]", block.astext()):
            block["classes"].append("wraps")


_CODE = re.compile(r"(^ *```.*?^ *```|`[^`]+`|\]\([^)]*\)|<!--.*?-->)", re.MULTILINE | re.DOTALL)
_RAISED = re.compile(r"\^(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\w))")
_LOWERED = re.compile(r"(?<=\w)_(?:\{([^{}]*)\}|([A-Za-zα-ω⊥])(?!\w))")


def _formulas(app: Any, docname: str, source: list[str]) -> None:
    """Show ``e^{x}`` and ``a_i`` of the Markdown pages as superscripts and subscripts."""
    if app.env.doc2path(docname).suffix != ".md":
        return
    parts = _CODE.split(source[0])
    for place in range(0, len(parts), 2):  # odd places are code, links and comments
        for pattern, tag in ((_LOWERED, "sub"), (_RAISED, "sup")):
            while pattern.search(parts[place]):  # again for what was nested
                parts[place] = pattern.sub(rf"<{tag}>\1\2</{tag}>", parts[place])
    source[0] = "".join(parts)


def setup(app: Any) -> None:
    """Register the hooks above."""
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _hide_colon, priority=400)
    app.connect("autodoc-process-docstring", _show_colon, priority=600)
    app.connect("autodoc-process-docstring", _list_parts)
    app.connect("source-read", _pages_outside)
    app.connect("include-read", _included)
    app.connect("source-read", _formulas)
    app.connect("doctree-read", _wrap_screens)
    app.connect("autodoc-process-signature", _plain_signature)
