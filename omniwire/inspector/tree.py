"""The tree of a value's fields, cut to a number of nodes that a person can read."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

import attrs

from omniwire.contracts.errors import Path
from omniwire.inspector.fields import parts
from omniwire.inspector.source import Finding

MAX_NODES: Final = 400
MAX_PARTS: Final = 40
MAX_LEVELS: Final = 12


@attrs.define(eq=False)
class Node:
    """A value in the tree.

    Attributes:
        name: What its parent calls it; empty for the root.
        value: The value itself.
        path: Where it stands, as a `Problem` has it.
        nodes: The parts of it that the tree shows, in order.
        num_more: How many parts it has that the tree does not show.
    """

    name: str
    value: object
    path: Path
    nodes: "list[Node]" = attrs.field(factory=list)
    num_more: int = 0


def tree_of(value: object) -> Node:
    """The tree of a value: of at most `MAX_NODES` nodes, those nearest to the root.

    No node has more than `MAX_PARTS` parts or stands more than `MAX_LEVELS` below the root.
    """
    root = Node("", value, ())
    room = MAX_NODES
    pending = deque([root])
    while pending:
        node = pending.popleft()
        every = iter(parts(node.value))
        most = min(room, MAX_PARTS) if len(node.path) < MAX_LEVELS else 0
        for part in islice(every, most):
            node.nodes.append(Node(part.name, part.value, (*node.path, part.step)))
        room -= len(node.nodes)
        node.num_more = sum(1 for _ in every)
        pending.extend(node.nodes)
    return root


class Faults:
    """Where in a tree problems are.

    Args:
        findings: What is wrong.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._paths = {finding.problem.path for finding in findings if finding.problem is not None}
        self._above = {path[:end] for path in self._paths for end in range(len(path))}

    def at(self, node: Node) -> bool:
        """Whether a problem is here, or under here where the tree does not go."""
        return node.path in self._paths or (node.path in self._above and not node.nodes)
