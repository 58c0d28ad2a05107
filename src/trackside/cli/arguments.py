"""Types of arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.constructors import PrimitiveConstructorSpec

RunPath = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
"""A run's directory."""

Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
"""An option without a value, off by default."""

OptionalFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
"""A file; None by default."""

OptionalDirectory = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
"""A directory; None by default."""

OptionalText = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
"""A name; None by default."""

Silenced = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="ID", help_behavior_hint="(can be repeated)")
]
"""The ids of findings to leave out; none by default."""

HERE = ""
"""The value of `FileOrDefault` if the option was given without a file."""

FileOrDefault = Annotated[
    str | None,
    PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[FILE]",
        instance_from_str=lambda words: words[0] if words else HERE,
        is_instance=lambda value: value is None or isinstance(value, str),
        str_from_instance=lambda value: [value] if value else [],
    ),
    tyro.conf.arg(help_behavior_hint=""),
]
"""An option whose file may be omitted: None by default, `HERE` without a file."""
