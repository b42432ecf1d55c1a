"""The house of rml: who may import whom.

A module imports only from floors below its own, or from its own room; nothing goes in circles.
Imports are read from the sources, those inside functions included.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import SimpleNamespace

import pytest

import rml
from rml import errors

PACKAGE = Path(__file__).resolve().parent.parent / "rml"

# From the ground up. Rooms of one floor do not know each other.
FLOORS = (
    ("errors",),
    ("rml",),  # the face: what is in it, and the names that it hands out below
    ("control_groups", "ranges"),
    ("memory_room",),
    ("_kernels",),
    ("basics", "limits", "selftest"),
    ("files",),
    ("tokenizers",),
    ("sampling",),
    ("llm",),
    ("engine",),
    ("generation",),
    ("model",),
    ("loading", "scan"),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}

# Names that the face hands out when they are asked for; whoever asks needs their homes.
HANDED_OUT = {name: home for home, names in rml._HOMES.items() for name in names}


def room_of(module):
    """`"files"` of `"rml.files.gguf"`; the face is a room of its own."""
    return module.split(".")[1] if "." in module else module


def sources_of(package):
    """Name of each module, and its text."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return found


def imported(node, modules) -> Iterator[str]:
    """Modules of rml that an import statement names."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name == "rml":  # and then rml.load, or whatever else
                yield from {"rml", *HANDED_OUT.values()}
            elif alias.name.startswith("rml."):
                yield alias.name
    elif node.level or (node.module or "").split(".")[0] == "rml":
        assert not node.level, "a relative import"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if whole in modules:
                yield whole
            elif node.module == "rml":
                yield HANDED_OUT.get(alias.name, "rml")
            else:
                yield node.module


def statements(node, for_typing=False) -> Iterator[tuple[ast.stmt, bool]]:
    """Imports below a node, and whether only type checkers see them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, for_typing
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            negated = isinstance(child.test, ast.UnaryOp)
            for body, only in ((child.body, not negated), (child.orelse, negated)):
                yield from statements(ast.Module(body, []), for_typing or only)
        else:
            yield from statements(child, for_typing)


def imports_of(sources):
    """What each module imports: at run time, and for type checkers only."""
    result = {}
    for module, text in sources.items():
        found = SimpleNamespace(running=set(), typing=set())
        for node, for_typing in statements(ast.parse(text)):
            for target in imported(node, sources):
                assert target in sources, f"{module} imports {target}, which is not there"
                (found.typing if for_typing else found.running).add(target)
        result[module] = found
    return result


def with_packages(module, targets):
    """Add the packages that are run when something inside them is imported from outside."""
    result = set(targets)
    for target in targets:
        parts = target.split(".")
        for end in range(2, len(parts)):
            package = ".".join(parts[:end])
            if not f"{module}.".startswith(f"{package}."):
                result.add(package)
    return result


def circle_in(graph):
    """Some modules that need each other in turn; empty if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def climbs(module, targets):
    """Imports that go up, or into another room of the same floor."""
    room = room_of(module)
    return sorted(
        f"{module} imports {target}"
        for target in targets
        if room_of(target) != room and FLOOR[room_of(target)] >= FLOOR[room]
    )


SOURCES = sources_of(PACKAGE)
IMPORTS = imports_of(SOURCES)


def test_every_module_has_a_floor():
    assert {room_of(module) for module in SOURCES} == set(FLOOR)


def test_no_module_imports_from_above():
    found = [line for module, its in IMPORTS.items() for line in climbs(module, its.running)]

    assert found == []


def test_no_module_knows_types_from_above():
    found = [
        line
        for module, its in IMPORTS.items()
        if module != "rml"  # whose types are those of what it hands out
        for line in climbs(module, its.typing)
    ]

    assert found == []


def test_nothing_is_imported_in_circles():
    assert circle_in({m: with_packages(m, its.running) for m, its in IMPORTS.items()}) == []


def test_types_do_not_go_in_circles():
    graph = {
        module: with_packages(module, its.running | (its.typing if module != "rml" else set()))
        for module, its in IMPORTS.items()
    }

    assert circle_in(graph) == []


def test_the_face_hands_out_what_type_checkers_see():
    assert IMPORTS["rml"].running == {"rml.errors"}
    assert IMPORTS["rml"].typing == set(rml._HOMES)
    assert set(rml.__all__) == {*errors.__all__, *HANDED_OUT, "__version__"}


def test_kernels_import_kernels_and_errors_only():
    """Also those that are compiled, which `ast` cannot read."""
    files = [*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxi")]
    assert len(files) > 20
    for path in files:
        names = re.findall(
            r"^\s*(?:from|c?import)\s+(rml[\w.]*)", path.read_text("utf-8"), re.MULTILINE
        )
        assert {room_of(name) for name in names} <= {"_kernels", "errors"}, path.name


TOY = {
    "rml": "",
    "rml.errors": "",
    "rml.files": "from rml.files.gguf import read",
    "rml.files.gguf": "def read():\n    from rml.llm import recipe",
    "rml.llm": "",
    "rml.llm.recipe": "import rml.files.gguf as g\nif TYPE_CHECKING:\n    from rml.llm import step",
    "rml.llm.step": "try:\n    from rml.llm import recipe\nfinally:\n    pass",
    "rml.llm.plan": "if not TYPE_CHECKING:\n    import rml.errors\nelse:\n    import rml.llm.step",
}


@pytest.fixture
def toy():
    return imports_of(TOY)


def test_imports_are_found_wherever_they_are(toy):
    assert toy["rml.files.gguf"].running == {"rml.llm.recipe"}
    assert (toy["rml.llm.recipe"].running, toy["rml.llm.recipe"].typing) == (
        {"rml.files.gguf"},
        {"rml.llm.step"},
    )
    assert toy["rml.llm.step"].running == {"rml.llm.recipe"}
    assert (toy["rml.llm.plan"].running, toy["rml.llm.plan"].typing) == (
        {"rml.errors"},
        {"rml.llm.step"},
    )


def test_circles_and_climbs_are_found(toy):
    running = {module: with_packages(module, its.running) for module, its in toy.items()}

    assert {"rml.files.gguf", "rml.llm.recipe"} <= set(circle_in(running))
    assert climbs("rml.files.gguf", running["rml.files.gguf"]) == [
        "rml.files.gguf imports rml.llm",
        "rml.files.gguf imports rml.llm.recipe",
    ]
    assert climbs("rml.llm.recipe", running["rml.llm.recipe"]) == []
    # Neighbours on a floor do not know each other.
    assert climbs("rml.limits", {"rml.selftest.problem"})
    # Whoever goes through the face needs what it hands out.
    asked = imports_of(
        {**SOURCES, "rml.files.a": "import rml", "rml.files.b": "from rml import load"}
    )
    assert "rml.files.a imports rml.model" in climbs("rml.files.a", asked["rml.files.a"].running)
    assert asked["rml.files.b"].running == {"rml.loading"}
