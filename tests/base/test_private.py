"""Private names of PyTorch are in one file, so that a new version has one file to break."""

import ast
from pathlib import Path

import torch

import neuralfde

SOURCE = Path(neuralfde.__file__).parent
ONLY = {"base/torch_private.py"}
#: Public modules by their spelling that are private by their documentation.
PRIVATE_MODULES = ("torch.nn.utils.stateless", "torch.autograd.forward_ad._")
#: Attributes of torch's objects that are used elsewhere, where, and why no function stands for them.
EXCEPTIONS = {
    ("base/caches.py", "_version"): "the only sign that a tensor was changed in place",
    ("models/csr.py", "_version"): "the same, of kept features and weights",
    ("rhs/first.py", "_buffers"): "buffers by their own names; named_buffers() walks all submodules again",
    ("rhs/first.py", "_sequence_nr"): "a method of a node: which came first",
    ("rhs/field.py", "_version"): "whether a tensor was written to; there is no public question",
}


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def imports(tree: ast.AST):
    """Full names of what is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def chains(tree: ast.AST):
    """Dotted names that begin with ``torch``, as they are used."""
    for node in ast.walk(tree):
        parts, inner = [], node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id == "torch":
            yield ".".join([inner.id, *reversed(parts)])


def offends(name: str) -> bool:
    parts = name.split(".")
    private = parts[0] == "torch" and any(is_private(part) for part in parts[1:])
    return private or any(f"{name}.".startswith(f"{known}.") for known in PRIVATE_MODULES)


def test_one_file_imports_private_names():
    found = {(path, name) for path, tree in modules() for name in (*imports(tree), *chains(tree)) if offends(name)}
    assert {path for path, _ in found} == ONLY, sorted(x for x in found if x[0] not in ONLY)


def test_private_modules_are_not_reached_by_other_spellings():
    words = (
        "_pytree",
        "_python_dispatch",
        "_engine_run_backward",
        "_reparametrize_module",
        "_functorch",
        "_disable_dynamo",
    )
    for path, tree in modules():
        if path in ONLY:
            continue
        for node in ast.walk(tree):
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            assert name not in words, f"{path} uses {name}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                assert not any(alias.name in words for alias in node.names), path


def test_attributes_of_torch_are_listed_with_a_reason():
    """Private attributes of anything but one's own object, where torch's objects have them."""
    known = set(dir(torch.Tensor)) | set(dir(torch.nn.Module())) | {"_sequence_nr", "_current_level"}
    found = set()
    for path, tree in modules():
        if path in ONLY:
            continue
        made = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and is_private(node.attr)
                and node.attr in known
                and node.attr not in made
            ):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                if not own:
                    found.add((path, node.attr))
    assert found == set(EXCEPTIONS), (found - set(EXCEPTIONS), set(EXCEPTIONS) - found)


def test_every_private_name_exists_and_is_used():
    """What is no longer needed leaves the file."""
    from neuralfde.base import torch_private

    used = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "torch_private.py")
    for name in torch_private.__all__:
        assert getattr(torch_private, name) is not None
        assert name in used, f"nobody uses {name}"
