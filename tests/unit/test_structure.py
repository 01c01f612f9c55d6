"""Who does what in the broker, by imports and names, as far as the engine decides it; circles of imports.

What a verb of the engine does has one place: fronts pass rules in, the engine applies them. Verbs that have
not come to the engine yet are named with where they stand.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SERVICES = Path(__file__).resolve().parents[2] / "services" / "whimbrel"
LINES_MAX = 70
CIRCLE_MAX = 3

# Names of classes that hold a protocol's rules, and the fronts that may make them.
RULES = {
    "SendRules": {"broker/api/send.py", "broker/remoting/sends.py"},
    "ReadRules": {"broker/api/pulls.py", "broker/remoting/pulls.py"},
    "TakeRules": {"broker/api/receive.py"},
    "PositionRules": {"broker/api/positions.py", "broker/remoting/positions.py"},
    "ChangeRules": {"broker/api/admin.py", "broker/remoting/groups.py", "broker/remoting/topics.py"},
    "ResetRules": {"broker/api/resets.py", "broker/remoting/resets.py"},
}
# Who calls what of a verb, below broker/.
CALLERS = {
    # begins a verb
    "Send": {"broker/api/send.py", "broker/remoting/sends.py"},
    "Read": {"broker/api/pulls.py", "broker/remoting/pulls.py"},
    "Take": {"broker/api/receive.py"},
    "Change": {"broker/api/admin.py", "broker/remoting/groups.py", "broker/remoting/topics.py"},
    "Settles": {"broker/roles/role.py"},
    "TableChanges": {"broker/roles/role.py"},
    "set_drained": {"broker/engine/tables.py", "broker/remoting/runtime.py"},
    "SettleService": {"broker/roles/role.py"},
    "PositionCalls": {"broker/roles/role.py"},
    "Position": {"broker/api/positions.py", "broker/remoting/positions.py"},
    "Resets": {"broker/roles/role.py"},
    "Reset": {"broker/api/resets.py", "broker/remoting/resets.py"},
    # has a position go back: of a group by an administrator, and by who commits it where nobody owns it
    "reset_offset": {"broker/engine/resets.py", "broker/consume/client_positions.py"},
    "settle_packed": {"broker/lane/acks.py"},
    # makes dead letters: of what is given up, and of what is used up
    "dead_letter": {"broker/engine/settle.py", "broker/consume/dead_letters.py"},
    # ends or moves leases without a consumer's call
    "LeaseUpkeep": {"broker/consume/group_consumption.py"},
    # scans queue entries and records for consumers: reads, and the planning of receives
    "Scan": {"broker/engine/read_forms.py", "broker/consume/delivery_planner.py"},
    "RecordRuns": {"broker/engine/read_forms.py", "broker/engine/frames.py"},
    # parks: reads and takes; requests that read whole tables have a line of their own
    "Waiting": {"broker/roles/role.py", "broker/remoting/long_reads.py"},
}


@cache
def tree_of(path: Path) -> ast.Module:
    """Return what is in a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the files below folders of the package but those that are generated, as text paths and trees."""
    for folder in folders:
        for path in sorted((SERVICES / folder).rglob("*.py")):
            name = str(path.relative_to(SERVICES))
            if not name.startswith("pb/"):
                yield name, tree_of(path)


def makers(name: str) -> set[str]:
    """Return the files of the broker that call a class, a function or a method."""
    return {
        path
        for path, tree in sources("broker")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    }


def test_rules_of_protocols_are_made_by_fronts() -> None:
    assert {name: makers(name) for name in RULES} == RULES


def test_each_verb_has_one_place() -> None:
    assert {name: makers(name) for name in CALLERS} == CALLERS


def test_nothing_of_the_engine_knows_which_protocol_it_serves() -> None:
    """A rule is a member or a check; nobody compares rules, or asks for their names."""
    for path, tree in sources("broker/engine"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare):
                names = {ast.unparse(one) for one in (node.left, *node.comparators)}
                assert not any(name.endswith("rules") for name in names), (path, node.lineno)


def test_functions_are_short() -> None:
    long = [
        (path, node.name, node.end_lineno - node.lineno + 1)
        for path, tree in sources("broker", "rpc")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LINES_MAX
    ]
    assert not long


def imports() -> dict[str, set[str]]:
    """Return which modules of the package each one imports, also for types, or within functions."""
    trees = dict(sources("."))
    names = {
        "whimbrel." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in trees
    }
    found: dict[str, set[str]] = {}
    for path, tree in trees.items():
        mine = found["whimbrel." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = (
            set()
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                mine |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                full = {one.name: f"{node.module}.{one.name}" for one in node.names}
                mine |= {one if one in names else node.module for one in full.values()}
        mine &= names
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that reach each other."""
    reach = {name: set(to) for name, to in edges.items()}
    for through in edges:
        for to in reach.values():
            if through in to:
                to |= reach[through]
    left, found = set(edges), []
    while left:
        name = min(left)
        circle = {name, *(other for other in reach[name] if name in reach[other])}
        left -= circle
        if len(circle) > 1:
            found.append(sorted(circle))
    return found


def test_circles_of_imports_are_small() -> None:
    """Imports of types are counted, and those within functions."""
    assert not [circle for circle in circles(imports()) if len(circle) > CIRCLE_MAX]


def test_metrics_know_no_roles() -> None:
    """Each part shows its own; a role lists them."""
    assert not {name for name in imports()["whimbrel.broker.metrics"] if ".roles" in name}
