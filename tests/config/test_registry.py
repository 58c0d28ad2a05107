"""Names find the class that was meant, or say why not."""

import types
from dataclasses import dataclass

import pytest

from trackside.config import ConfigDict, register
from trackside.config.registry import find_configs, registered
from trackside.errors import ConfigError


def make_config(module: str, name: str, base: type = ConfigDict, **fields: int) -> type:
    """A config class as if `module` had defined it."""
    body = {"__module__": module, "__qualname__": name, "__annotations__": dict.fromkeys(fields, int), **fields}
    return dataclass(types.new_class(name, (base,), exec_body=lambda namespace: namespace.update(body)))


def test_a_slots_dataclass_is_found_once():
    """The class that `slots=True` creates a second time replaces the first one, also inside a function."""

    @dataclass(slots=True)
    class TwiceMadeConfig(ConfigDict):
        a: int = 1

    assert find_configs("TwiceMadeConfig", ConfigDict) == [TwiceMadeConfig]
    assert ConfigDict.from_dict(ConfigDict, TwiceMadeConfig(3).to_dict()) == TwiceMadeConfig(3)


def test_a_class_defined_again_replaces_the_first():
    """As in a notebook: the same module and name mean the latest definition of the class."""
    make_config("notebook", "AgainConfig", a=1)
    second = make_config("notebook", "AgainConfig", a=2)
    assert ConfigDict.from_dict(ConfigDict, {"__class__": "AgainConfig"}) == second(2)


def test_a_config_of_a_class_defined_again_is_still_read_by_its_own_class():
    """A field that declares the old class still finds it after a redefinition."""
    first = make_config("notebook", "StaleConfig", a=1)
    make_config("notebook", "StaleConfig", a=2)
    assert type(ConfigDict.from_dict(first, first(5).to_dict())) is first


def test_writing_a_replaced_class_where_it_cannot_be_found_is_refused():
    """A config of the old class below a wider declaration would come back as the new class."""

    @dataclass
    class KeeperConfig(ConfigDict):
        inner: ConfigDict | None = None

    first = make_config("notebook", "LostConfig", a=1)
    make_config("notebook", "LostConfig", a=1)
    with pytest.raises(ConfigError, match=r"inner\.__class__: notebook\.LostConfig was redefined"):
        KeeperConfig(first()).to_dict()


def test_equal_names_are_told_apart_by_family():
    """Two classes of one name in two modules are both kept; the declared class decides."""
    left_base, right_base = make_config("left", "LeftBase"), make_config("right", "RightBase")
    left, right = make_config("left", "SameName", left_base), make_config("right", "SameName", right_base)
    assert type(ConfigDict.from_dict(left_base, {"__class__": "SameName"})) is left
    assert type(ConfigDict.from_dict(right_base, {"__class__": "SameName"})) is right


def test_an_ambiguous_name_is_refused():
    """If both classes of a name fit, the error names both."""
    base = make_config("left", "CommonBase")
    make_config("left", "Ambiguous", base)
    right = make_config("right", "Ambiguous", base)
    with pytest.raises(ConfigError, match=r"'Ambiguous' is ambiguous; write left\.Ambiguous or right\.Ambiguous"):
        ConfigDict.from_dict(base, {"__class__": "Ambiguous"})
    assert type(ConfigDict.from_dict(base, {"__class__": "right.Ambiguous"})) is right


def test_an_ambiguous_class_is_written_with_its_module():
    """A subclass that reuses its base's name does not break the round trip of either."""
    base = make_config("library", "ReusedName", a=1)
    derived = make_config("user", "ReusedName", base, a=2)
    assert base(3).to_dict() == {"__class__": "library.ReusedName", "a": 3}
    assert ConfigDict.from_dict(base, base(3).to_dict()) == base(3)
    assert ConfigDict.from_dict(base, derived(3).to_dict()) == derived(3)


def test_register_works_as_decorator_and_call():
    """Both forms give the object back and make it known."""

    @register("registry.decorated")
    def decorated():
        pass

    assert registered("registry.decorated") is decorated
    assert register("registry.called", len) is len
    assert registered("registry.called") is len


def test_registering_the_same_object_again_is_fine():
    """A repeated registration changes nothing."""
    register("registry.repeated", len)
    assert register("registry.repeated", len) is len


def test_a_name_stands_for_one_object():
    """Another object under the same name is refused, with the name and the object that has it."""
    register("registry.taken", len)
    with pytest.raises(ConfigError, match=r"register\('registry.taken'\): .*len.*choose another"):
        register("registry.taken", sum)
    register("registry.lambda", lambda: 1)
    with pytest.raises(ConfigError, match="choose another"):
        register("registry.lambda", lambda: 2)


def test_a_function_defined_again_replaces_the_first():
    """A notebook cell that runs twice may register its function twice."""

    def define():
        namespace = {"__name__": "notebook"}
        exec("def again(): pass", namespace)
        return namespace["again"]

    register("registry.again", define())
    second = register("registry.again", define())
    assert registered("registry.again") is second


@pytest.mark.parametrize("arguments", [("",), (len,), ("registry.number", 3)])
def test_register_refuses_what_cannot_be_meant(arguments):
    """A missing name or an object that cannot be called is an error at once."""
    with pytest.raises(ConfigError, match="register"):
        register(*arguments)
