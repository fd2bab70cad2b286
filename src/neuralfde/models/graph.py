"""F-GRAND: attention diffusion on a graph with memory of a fractional order, for node classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neuralfde.base.checks import is_real, real, whole
from neuralfde.base.torch_private import transforms_are_active, without_compiler
from neuralfde.errors import InputError, InputTypeError, UnsupportedError, nearest
from neuralfde.models.csr import Kept, bags_of
from neuralfde.models.diffusion import diffuse
from neuralfde.models.message_passing import OVER, SCORES, Graph, attention, sums_of
from neuralfde.models.powers import coefficients, sum_of_powers
from neuralfde.models.readout import readout
from neuralfde.models.softmax_attention import is_usual, softmax_attention
from neuralfde.nn import FDEBlock
from neuralfde.rhs.field import value_wanted

if TYPE_CHECKING:
    from torch_geometric.data import Data

VARIANTS = ("l", "nl")
STARTS = ("random", "average")


class Known(dict[int, list[Tensor]]):
    """Attention of each time of one solve, by the address of the time; with ``queries`` those and the keys too."""

    def __init__(self, queries: bool) -> None:
        self.queries = queries


class EdgeAttention(nn.Module):
    """Multi-head attention over edges and self loops, each target's weights averaged over heads and adding to 1.

    Chamberlain et al., "GRAND: Graph Neural Diffusion", ICML 2021; see
    ``neuralfde.models.message_passing.attention`` for the formula. GRAND starts the query and key maps at the
    constant 1e-5 (``start="average"``): diffusion starts as a plain average over neighbours, and since all rows of a
    map are then the same, its gradient is so small that a usual weight decay keeps it there. ``start="random"`` is the
    start of any other linear map.

    Args:
        features: width of the state.
        width: width of queries and keys, over all heads.
        heads: number of heads.
        kind: ``"scaled_dot"``, ``"cosine"``, ``"pearson"`` or ``"exp_kernel"``.
        normalise: ``"softmax"`` or ``"squareplus"``.
        over: whose weights add to 1: ``"target"`` or ``"source"``; ``"both"`` is the geometric mean of the two.
        start: ``"random"`` or ``"average"``.

    Shapes:
        z ``(N, features)``, result ``(E,)`` in the graph's order of edges.
    """

    AVERAGE = 1e-5

    def __init__(
        self,
        features: int,
        width: int,
        heads: int,
        kind: str,
        normalise: str,
        over: str = "target",
        start: str = "random",
    ) -> None:
        super().__init__()
        if kind not in SCORES:
            raise InputError(f"attention={kind!r} is no attention score. {nearest(kind, SCORES)}")
        if heads < 1 or width % heads:
            raise InputError(f"heads={heads} does not divide attention_width={width}. Change one of the two.")
        for name, value, known in (("start", start, STARTS), ("over", over, OVER)):
            if value not in known:
                raise InputError(f"{name}={value!r} is unknown. {nearest(value, known)}")
        self.heads, self.kind, self.normalise, self.over = heads, kind, normalise, over
        self.query = nn.Linear(features, width)
        self.key = nn.Linear(features, width)
        if start == "average":
            for map_ in (self.query, self.key):
                nn.init.constant_(map_.weight, self.AVERAGE)
        if kind == "exp_kernel":
            self.lengthscale = nn.Parameter(torch.ones(()))
            self.variance = nn.Parameter(torch.ones(()))

    def forward(self, graph: Graph, z: Tensor | Sequence[Tensor], keep: str = "all") -> Tensor:
        """One weight per edge; ``keep`` as of ``neuralfde.models.message_passing.attention``."""
        kernel = {"lengthscale": self.lengthscale, "variance": self.variance} if self.kind == "exp_kernel" else {}
        return attention(graph, z, *self.maps, self.heads, self.kind, self.normalise, self.over, keep, **kernel)

    def through(self, graph: Graph, z: Tensor, keep: str, known: list[Tensor] | None) -> tuple[Tensor, Tensor]:
        """The same and ``z``, see ``neuralfde.models.softmax_attention``."""
        if self.over != "target" or not is_usual(self.query.weight, self.kind, self.normalise):
            return self(graph, z), z
        return softmax_attention(graph, [z], self.maps, self.heads, keep, known)

    @property
    def maps(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weight and bias of the query map, then of the key map."""
        return self.query.weight, self.query.bias, self.key.weight, self.key.bias


class Diffusion(nn.Module):
    """The right-hand side ``f(Z) = σ(a) (A - I) Z + b Z_0`` with scalars ``a`` and ``b`` learned from zero.

    Args:
        attention: makes ``A`` from the state at every evaluation; without one ``A`` is an argument of the call.
        source: whether there is the term ``b Z_0``.
        recompute: whether the backward pass computes attention again, head by head.
    """

    def __init__(self, attention: EdgeAttention | None, source: bool, recompute: bool = False) -> None:
        super().__init__()
        self.attention, self.recompute = attention, recompute
        self.a = nn.Parameter(torch.zeros(()))
        self.b = nn.Parameter(torch.zeros(())) if source else None

    def forward(
        self, t: Tensor, z: Tensor, graph: Graph, weight: Tensor | None, z0: Tensor | None, known: Known | None = None
    ) -> Tensor:
        """``weight`` ``(E,)`` where attention was computed before; ``z0`` where there is a source.

        ``known`` keeps the attention of each time for the backward pass.
        """
        if self.attention is not None:
            kept = None if known is None else known.setdefault(t.data_ptr(), [])
            # where only the derivative is wanted it comes next, and queries and keys need not be kept for it
            queries = value_wanted() if known is None else known.queries
            keep = "nothing" if self.recompute else "all" if queries else "weights"
            weight, z = self.attention.through(graph, z, keep, kept)
        assert weight is not None
        strength = None if self.b is None else self.b[None]
        return diffuse(graph, weight, z, torch.sigmoid(self.a)[None], None if self.b is None else z0, strength)


Features = Tensor | tuple[Graph, Tensor, int]
"""Dense features, or sparse ones as bags, their values and the number of nodes."""


class FGrand(nn.Module):
    """Fractional graph neural diffusion between a linear encoder and a linear decoder.

    Kang et al., "Unleashing the potential of fractional calculus in graph neural networks with FROND", ICLR 2024, and
    Kang et al., "Efficient training of neural fractional-order differential equation via adjoint backpropagation",
    AAAI 2025:

        Z_0 = W_e dropout(X) + c_e,   D^β Z = σ(a) (A - I) Z + b Z_0,   logits = W_d dropout(relu(Z(T))) + c_d

    with ``A`` the attention of ``EdgeAttention``. Variant ``"l"`` computes ``A`` once, from ``Z_0``, and the
    equation is linear; ``"nl"`` computes it from ``Z`` at every evaluation. Gradients are exact for both, by
    ``backward()`` alone: there are no second derivatives, and ``torch.func`` and ``torch.export`` are refused.

    Args:
        in_features: width of the node features.
        classes: number of classes.
        hidden: width of the state Z.
        variant: ``"l"`` or ``"nl"``.
        heads: attention heads.
        attention: the score: ``"scaled_dot"``, ``"cosine"``, ``"pearson"`` or ``"exp_kernel"``.
        attention_width: width of queries and keys over all heads; default: ``hidden``.
        normalise: ``"softmax"`` or ``"squareplus"``.
        over: whose weights add to 1: ``"target"`` (rows of A), ``"source"`` (columns), or ``"both"`` in between.
        start: how attention starts, see ``EdgeAttention``.
        loops: whether attention has an edge from each node to itself.
        order: β in (0, 1]; with ``learn_order`` its initial value.
        learn_order: train the order too.
        t: the time T.
        step: the step h.
        input_dropout: in front of the encoder.
        dropout: in front of the decoder.
        node_dropout: share of the nodes that lose all their features at once in training (Feng et al., "Graph random
            neural networks for semi-supervised learning on graphs", NeurIPS 2020).
        source: whether the equation has the term ``b Z_0``; ``"held"``: it has, but is held fixed in the gradient, as
            FROND's code has it, so that the encoder learns from what was diffused alone.
        batch_norm: normalise ``Z_0`` over the nodes, feature by feature, as ``torch.nn.BatchNorm1d`` does.
        columns: with variant ``"l"`` the columns of Z do not depend on each other; solve for so many of them at a time.
            What a step needs beside its history then takes less memory. Default: all at once.
        recompute: keep less for the backward pass and compute it again there. Attention is kept for no head. Variant
            ``"l"`` also forgets each part's history: with ``columns`` its memory falls with their number too, for one
            more forward pass of time.
        keep_attention: with variant ``"nl"``, keep the attention of each step, edges × heads numbers, for the backward
            pass, which computes it again otherwise; ``"all"``: queries and keys too, two states a step.
        powers: with variant ``"l"`` the solution is a sum of powers of ``A`` applied to ``Z_0``: the same numbers, but
            for rounding, without a past to keep or to sum, see ``neuralfde.models.powers``. It takes no further
            options of the block but ``check_finite``.
        options: as of ``neuralfde.FDEBlock``: ``adjoint``, ``history``, ``method``, ``storage``, …

    Shapes:
        x ``(N, in_features)``, dense or sparse COO (bags of words are mostly zeros), edge_index ``(2, E)``, result
        ``(N, classes)``.
    """

    def __init__(
        self,
        in_features: int,
        classes: int,
        hidden: int = 64,
        variant: str = "l",
        heads: int = 4,
        attention: str = "scaled_dot",
        attention_width: int | None = None,
        normalise: str = "softmax",
        over: str = "target",
        start: str = "random",
        loops: bool = True,
        order: float = 0.9,
        learn_order: bool = False,
        t: float = 4.0,
        step: float | None = 1.0,
        input_dropout: float = 0.0,
        dropout: float = 0.0,
        node_dropout: float = 0.0,
        source: bool | str = True,
        batch_norm: bool = False,
        columns: int | None = None,
        recompute: bool = False,
        keep_attention: bool | str = False,
        powers: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        for name, value in (("in_features", in_features), ("classes", classes), ("hidden", hidden), ("heads", heads)):
            whole(name, value)
        real("t", t, above=0, hint="The decoder takes the state at this time.")
        for name, share in (("input_dropout", input_dropout), ("dropout", dropout), ("node_dropout", node_dropout)):
            if not (is_real(share) and 0 <= share <= 1):
                raise InputError(f"{name}={share!r} must be a share, from 0 to 1.")
        if columns is not None:
            whole("columns", columns)
        if variant == "nl" and columns is not None:
            raise InputError("columns needs variant='l': attention that changes ties columns together.")
        if powers and (variant, options.get("method") or "predictor", type(step)) != ("l", "predictor", float):
            raise InputError("powers=True needs variant='l', method='predictor' and a step.")
        unused = sorted(options.keys() - {"method", "check_finite"}) if powers else []
        if unused:
            raise InputError(f"powers=True takes no steps, and {', '.join(unused)} would have no say: leave it out.")
        if batch_norm and (columns is not None or (recompute and variant == "l")):
            raise InputError("batch_norm counts every pass over the nodes, and columns or recompute make several.")
        if source not in (False, True, "held"):
            raise InputError(f"source={source!r} is neither True, False nor 'held'.")
        if variant not in VARIANTS:
            raise InputError(f"variant={variant!r} is unknown. {nearest(variant, VARIANTS)}")
        self.variant, self.source, self.input_dropout, self.dropout = variant, source, input_dropout, dropout
        self.node_dropout, self.loops = node_dropout, loops
        self.columns, self.recompute, self.keep_attention, self.powers = columns, recompute, keep_attention, powers
        if keep_attention not in (False, True, "all"):
            raise InputError(f"keep_attention={keep_attention!r} is neither True, False nor 'all'.")
        if keep_attention:
            options["stepper"] = "single"  # a replayed step keeps nothing
        self.encoder = nn.Linear(in_features, hidden)
        self.decoder = nn.Linear(hidden, classes)
        self.norm = nn.BatchNorm1d(hidden) if batch_norm else None
        edges = EdgeAttention(hidden, attention_width or hidden, heads, attention, normalise, over, start)
        self.attention = edges if variant == "l" else None
        func = Diffusion(None if variant == "l" else edges, bool(source), recompute)
        self.block = FDEBlock(func, order=order, learn_order=learn_order, t=t, step=step, **options)
        self._prepared, self._bags = Kept(), Kept()

    @property
    def order(self) -> Tensor:
        """The order β in use."""
        order = self.block.order
        assert isinstance(order, Tensor)
        return order

    @without_compiler  # it consists of sparse products, which the compiler fails on
    def forward(self, x: Data | Tensor, edge_index: Tensor | Graph | None = None) -> Tensor:
        """Logits of every node, from ``model(data)``, ``model(x, edge_index)`` or ``model(x, graph)``."""
        features = x if isinstance(x, Tensor) else x.x
        edges = x.edge_index if edge_index is None and not isinstance(x, Tensor) else edge_index
        if not isinstance(features, Tensor) or edges is None:
            raise InputTypeError("FGrand needs features and edges: call model(data) or model(x, edge_index).")
        self._refuse(features)
        graph = self.prepare(edges, features.shape[0])
        x, maps = self.drop(features), (self.encoder.weight, self.encoder.bias)
        total: Tensor = self.decoder.bias
        if self.attention is None:
            known = Known(self.keep_attention == "all") if self.keep_attention and torch.is_grad_enabled() else None
            return self.logits(self.encode(x, *maps), graph, None, self.decoder.weight, total, known)
        blocks = [m.split(self.columns or len(m)) for m in (*maps, self.decoder.weight.t())]
        if self.recompute and torch.is_grad_enabled():
            if features.is_sparse and features.requires_grad:
                raise InputError(
                    "recompute=True has no gradient for sparse features: pass x.to_dense(), or leave it out."
                )
            weight = checkpoint(self.attend, x, *maps, graph, use_reentrant=True)
            for w, b, columns in zip(*blocks, strict=True):
                total = total + checkpoint(self.columns_of, x, w, b, graph, weight, columns.t(), use_reentrant=True)
            return total
        parts = [self.encode(x, w, b) for w, b, _ in zip(*blocks, strict=True)]
        weight = self.attention(graph, parts, "weights")
        for part, columns in zip(parts, blocks[2], strict=True):
            total = self.logits(part, graph, weight, columns.t(), total)
        return total

    def _refuse(self, x: Tensor) -> None:
        """Raise for features that this model cannot take, and for what does not know its operations."""
        if transforms_are_active() or torch.compiler.is_exporting():
            raise UnsupportedError(
                "FGrand is made of sparse products, whose first derivatives are written out for backward(). Neither "
                "torch.func nor torch.export can take them: use an FDEBlock whose func multiplies by a dense matrix."
            )
        weight = self.encoder.weight
        if x.ndim != 2 or x.shape[1] != weight.shape[1]:
            raise InputError(
                f"x has shape {tuple(x.shape)} and must be (nodes, {weight.shape[1]}), as in_features says."
            )
        if x.dtype != weight.dtype and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
            raise InputTypeError(f"x has dtype {x.dtype}, the model {weight.dtype}: convert one with .to(dtype).")

    def attend(self, x: Features, w: Tensor, b: Tensor, graph: Graph) -> Tensor:
        """Attention of ``Z_0``, of which nothing is kept."""
        assert self.attention is not None
        return self.attention(graph, self.encode(x, w, b), "nothing")

    def columns_of(self, x: Features, w: Tensor, b: Tensor, graph: Graph, weight: Tensor, columns: Tensor) -> Tensor:
        """What the columns of the state with these parts of encoder and decoder add to the logits."""
        return self.logits(self.encode(x, w, b), graph, weight, columns, b.new_zeros(columns.shape[0]))

    def logits(
        self, z: Tensor, graph: Graph, weight: Tensor | None, columns: Tensor, c: Tensor, known: Known | None = None
    ) -> Tensor:
        """What columns of the state that begin as ``z`` add to ``c`` through these columns of the decoder."""
        dropout = self.dropout if self.training else 0.0
        return readout(self.evolve(z, graph, weight, known), columns, c, dropout)

    def evolve(self, z: Tensor, graph: Graph, weight: Tensor | None, known: Known | None = None) -> Tensor:
        """``Z(T)`` from ``Z_0``; columns do not depend on each other where attention is given."""
        held = z.detach() if self.source == "held" else z
        if not self.powers:
            return self.block(z, graph, weight, held if self.source else None, known)  # type: ignore[no-any-return]
        assert weight is not None
        func, options = self.block.func, self.block.options
        shares = (torch.sigmoid(func.a), func.b)  # type: ignore[attr-defined]
        check = options.get("check_finite", True)
        c = coefficients(*shares, self.block.t, options["step"], self.order, check)  # type: ignore[arg-type]
        if held is z:
            return sum_of_powers(graph, weight, z, c)
        own = coefficients(shares[0], None, self.block.t, options["step"], self.order, check)  # type: ignore[arg-type]
        return sum_of_powers(graph, weight, z, own) + sum_of_powers(graph, weight, held, c - own)

    def drop(self, x: Tensor) -> Features:
        """The features that are left of ``x`` in training; of sparse ones the values, since zeros stay as they are."""
        p = self.node_dropout if self.training else 0.0
        nodes = F.dropout(torch.ones(x.shape[0], 1, device=x.device, dtype=x.dtype), p) if p else None
        if not x.is_sparse:
            x = F.dropout(x, self.input_dropout, self.training)
            return x if nodes is None else x * nodes
        bags, entries = self._bags.of(x, bags_of)
        values = F.dropout(entries[0], self.input_dropout, self.training)
        return bags, values if nodes is None else values * nodes[bags.row.long(), 0], x.shape[0]

    def encode(self, x: Features, weight: Tensor, bias: Tensor) -> Tensor:
        """``Z_0``, or the columns of it that these parts of the encoder make."""
        if isinstance(x, Tensor):
            z = F.linear(x, weight, bias)
        else:
            bags, values, nodes = x
            z = sums_of(bags, values, weight.t())[:nodes] + bias
        return z if self.norm is None else self.norm(z)  # type: ignore[no-any-return]

    def prepare(self, edges: Tensor | Graph, nodes: int) -> Graph:
        """The graph of ``edges``; that of the last ``edge_index`` is kept, since sorting it costs more than a step."""
        if isinstance(edges, Graph):
            if edges.num_nodes != nodes:
                raise InputError(f"the graph has {edges.num_nodes} nodes, x has {nodes} rows.")
            return edges
        return self._prepared.of(edges, Graph.from_edge_index, nodes, self.loops)
