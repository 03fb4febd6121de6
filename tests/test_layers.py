"""Imports point down, and never in a circle: the order of CONTRIBUTING's map."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import rbn_fairseq

ROOT = Path(rbn_fairseq.__file__).parent
#: Each may import what stands before it; those in one line do not import each other.
LAYERS = (
    ("version", "writing", "recipes"),
    ("pieces",),
    ("norms",),
    ("diagnostics",),
    ("models",),
    ("criterions",),
    ("checkpoints",),
    ("measuring",),
    ("callbacks",),
    ("tasks",),
    ("__init__",),
    ("corpora", "report"),
    ("scoring",),
    ("translator",),
    ("quickstart",),
    ("cli",),
    ("__main__",),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
#: What `import rbn_fairseq` loads when fairseq is there: the only arrows up.
REGISTERS = "rbn_fairseq"


def name_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in ROOT.rglob("*.py")}


def imports(path):
    """Modules of the package that one imports anywhere, also in functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


GRAPH = {
    name: {module for module in imports(path) if module in MODULES and module != name}
    for name, path in MODULES.items()
}


def package(module):
    return (module.split(".") + ["__init__"])[1]


def test_every_package_has_its_layer():
    assert {package(module) for module in MODULES} == set(LEVEL)


def test_imports_point_down():
    up = {
        (module, other)
        for module, others in GRAPH.items()
        for other in others
        if package(module) != package(other)
        and LEVEL[package(other)] >= LEVEL[package(module)]
        and REGISTERS not in (module, other)
    }
    assert not up


def test_the_report_reads_files_alone():
    reached = {
        package(other)
        for module, others in GRAPH.items()
        if package(module) == "report"
        for other in others
    }
    assert reached <= {"report", "recipes", "version", "writing"}


def test_the_package_needs_no_benchmark():
    benchmarks = {path.stem for path in ROOT.parent.glob("benchmarks/*.py")}
    assert "norms" in benchmarks
    assert not [name for name, path in MODULES.items() if benchmarks & set(imports(path))]


def test_no_circles():
    inner = {
        module: {other for other in others if other != REGISTERS}
        for module, others in GRAPH.items()
    }
    list(TopologicalSorter(inner).static_order())  # raises CycleError


def test_base_names_mean_one_thing():
    names = [path.stem for path in MODULES.values() if path.stem not in ("__init__", "options")]
    assert not {name for name in names if names.count(name) > 1}
