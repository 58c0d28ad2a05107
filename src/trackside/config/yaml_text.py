"""YAML for configs: safe loading, `1e-3` is a number and `2024-01-01` a string."""

import functools
import re
from typing import Any

# PyYAML follows YAML 1.1, which requires a dot and a signed exponent; people write 1e-3.
_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
        |\.[0-9_]+(?:[eE][-+]?[0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"
_FLOAT_TAG = "tag:yaml.org,2002:float"


@functools.cache
def _loader_and_dumper() -> tuple[Any, Any]:
    import yaml

    loader = type("ConfigLoader", (yaml.SafeLoader,), {})
    dumper = type("ConfigDumper", (yaml.SafeDumper,), {})
    for cls in (loader, dumper):  # both, so that the dumper quotes exactly what the loader would read as a number
        cls.yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_TIMESTAMP_TAG, _FLOAT_TAG)]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }
        cls.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
    return loader, dumper


def load_yaml(text: str) -> Any:
    """Read one document.

    Raises:
        yaml.YAMLError: If the text is not YAML, or contains more than plain data.
    """
    import yaml

    return yaml.load(text, Loader=_loader_and_dumper()[0])


def load_yaml_as_text(text: str) -> Any:
    """Read one document, keeping every scalar as a string."""
    import yaml

    return yaml.load(text, Loader=yaml.BaseLoader)


def dump_yaml(data: Any) -> str:
    """Write plain data. Keys keep their order."""
    import yaml

    return yaml.dump(data, Dumper=_loader_and_dumper()[1], sort_keys=False)
