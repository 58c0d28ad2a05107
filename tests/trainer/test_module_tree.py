"""Scopes find the modules that opened them."""

from collections import Counter

from trackside.trainer.module_tree import ModuleTree

Rows = dict[str, Counter[str]]


def tree_of(*paths: str, root: str = "") -> ModuleTree:
    tree = ModuleTree(root)
    for path in paths:
        tree.add_array(tuple(path.split("/")), params=1)
    return tree


def rows(tree: ModuleTree) -> list[tuple[int, str, dict[str, int]]]:
    return [(depth, name, dict(module.totals())) for depth, name, module in tree.visible()]


def test_scope_of_a_list_element() -> None:
    """`blocks.0` is the module `blocks/0`, and the list itself is no row."""
    tree = tree_of("blocks/0/kernel", "blocks/1/kernel")
    tree.add_scope(("blocks.1",), flops=7)
    assert rows(tree)[1:] == [(1, "blocks.0", {"params": 1}), (1, "blocks.1", {"params": 1, "flops": 7})]


def test_scope_of_the_whole_model_is_the_root() -> None:
    """Linen's scope for the model, and for another method of it, is not a module below it."""
    tree = tree_of("first/kernel", root="Net")
    tree.add_scope(("Net", "first"), flops=1)
    tree.add_scope(("Net.encode", "first"), flops=2)
    assert rows(tree)[1:] == [(1, "first", {"params": 1, "flops": 3})]


def test_scope_of_a_method() -> None:
    """A call of another method counts for its module."""
    tree = tree_of("embed/embedding")
    tree.add_scope(("embed.attend",), flops=3)
    assert rows(tree)[1:] == [(1, "embed", {"params": 1, "flops": 3})]


def test_module_that_opens_no_scope_is_skipped_on_the_way() -> None:
    """A layer inside of one that is not called itself is found below it."""
    tree = tree_of("encoder/dense/kernel")
    tree.add_scope(("dense",), flops=3)
    assert rows(tree)[1:] == [(1, "encoder", {"params": 1, "flops": 3}), (2, "dense", {"params": 1, "flops": 3})]


def test_ambiguous_scope_is_given_to_none() -> None:
    """A name that two layers have, equally deep, counts for neither."""
    tree = tree_of("a/dense/kernel", "b/dense/kernel")
    tree.add_scope(("dense",), flops=3)
    assert (1, "dense", {"flops": 3}) in rows(tree)


def test_names_of_the_user_are_parts_of_their_module() -> None:
    """A scope that no module has is a part of the one around it; Equinox's own names of layers are not."""
    tree = tree_of("first/weight")
    tree.add_scope(("first", "eqx.nn.Linear", "product"), flops=5)
    assert [row[:2] for row in rows(tree)[1:]] == [(1, "first"), (2, "product")]


def test_modules_are_in_the_order_in_which_they_run() -> None:
    """Not in that of their names; what never runs comes last."""
    tree = tree_of("a/kernel", "b/kernel", "c/kernel")
    for name in ("c", "b"):
        tree.add_scope((name,))
    assert [name for _, name, _ in rows(tree)[1:]] == ["c", "b", "a"]
