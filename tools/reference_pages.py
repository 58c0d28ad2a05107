"""The pages of the reference, one for each public package: a hook of mkdocs, see mkdocs.yml.

A page consists of directives of mkdocstrings, which shows signatures, fields and docstrings from the source. The source
also says here what is public, so that nothing is imported.
"""

from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

# In search results, the guides come first.
HEAD = "---\nsearch: {boost: 0.5}\n---\n"
SOURCES = Path(__file__).parent.parent / "src"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages. mkdocs calls this when it has listed docs/."""
    package = griffe.load("trackside", search_paths=[SOURCES])
    assert isinstance(package, griffe.Module)
    modules = [member for name in _exports(package) if isinstance(member := package[name], griffe.Module)]
    homes = _homes(modules)
    for module in modules:
        content = _page(module, homes)
        files.append(File.generated(config, f"reference/{module.name}.md", content=content))
    return files


def _exports(module: griffe.Module) -> list[str]:
    """The names in a module's `__all__`, sorted without regard to case."""
    return sorted(map(str, module.exports or ()), key=str.lower)


def _homes(modules: list[griffe.Module]) -> dict[str, str]:
    """Which public path each public object is documented under, by the path of its definition.

    An object that two packages export is documented in the one that defines it.
    """
    homes: dict[str, str] = {}
    for module in modules:
        for name in _exports(module):
            defined_as = module[name].canonical_path
            if defined_as not in homes or defined_as.startswith(f"{module.path}."):
                homes[defined_as] = f"{module.path}.{name}"
    return homes


def _page(module: griffe.Module, homes: dict[str, str]) -> str:
    docstring = module.docstring.value if module.docstring else ""
    entries = (_entry(module[name], homes) for name in _exports(module))
    return HEAD + "\n".join([f"# {module.path}\n", f"{docstring}\n", *entries])


def _entry(exported: griffe.Object | griffe.Alias, homes: dict[str, str]) -> str:
    home = homes[exported.canonical_path]
    if home != exported.path:
        return f"## {exported.name} {{ #{exported.path} }}\n\nSee [`{home}`][{home}].\n"
    lines = [f"::: {exported.path}"]
    if exported.is_class:
        cls = exported.final_target if isinstance(exported, griffe.Alias) else exported
        assert isinstance(cls, griffe.Class)
        lines += [
            "    options:",
            "      inherited_members: true",
            f"      members: {_members(cls, homes)}",
            f"      merge_init_into_class: {'dataclass' not in cls.labels}",  # fields say what the signature would
            f"      show_bases: {any(base.canonical_path in homes for base in cls.resolved_bases)}",
        ]
    return "\n".join([*lines, ""])


def _members(cls: griffe.Class, homes: dict[str, str]) -> list[str]:
    """The members that the page shows: those of the class, those of private bases, and the fields of all bases.

    Methods of a public base are documented there.
    """
    bases = cls.mro()
    public_bases = [base for base in bases if base.canonical_path in homes]
    elsewhere = {name for base in public_bases for name in base.members}
    shown: dict[str, None] = {}
    for parent in (cls, *bases):
        for name, member in parent.members.items():
            is_field = "dataclass" in parent.labels and "instance-attribute" in member.labels
            is_own = parent not in public_bases and name not in elsewhere and member.has_docstring
            if not name.startswith("_") and (is_field or is_own):
                shown[name] = None
    return list(shown)
