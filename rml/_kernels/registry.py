"""The kernels: one entry for each, with all that is true of it.

The entries are what everything else is made from: which kernels there are as definitions and as
twins (`rml._kernels`), what can be recorded in a plan and what that costs (`rml.llm.operation`),
and what the self-test must measure (`rml.selftest`). A further kernel is its files, an import and
an entry here, and a problem of the self-test.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rml._kernels import costs

# "as" hands a name on to `rml._kernels`, where type checkers and readers find it.
from rml._kernels.accumulate_py import accumulate as accumulate
from rml._kernels.add_py import add as add
from rml._kernels.attention_py import attend as attend
from rml._kernels.choose_py import choose as choose
from rml._kernels.costs import Cost
from rml._kernels.dequant_py import dequantize as dequantize
from rml._kernels.dequant_py import embed as embed
from rml._kernels.experts_py import mix_experts as mix_experts
from rml._kernels.kv_store_py import store_kv as store_kv
from rml._kernels.largest_py import largest as largest
from rml._kernels.log_sum_exp_py import log_sum_exp as log_sum_exp
from rml._kernels.matmul_glu_py import matmul_glu as matmul_glu
from rml._kernels.matmul_many_py import matmul_many as matmul_many
from rml._kernels.merge_py import bpe_merge as bpe_merge
from rml._kernels.merge_py import spm_merge as spm_merge
from rml._kernels.norm_py import rms_norm as rms_norm
from rml._kernels.penalize_py import penalize as penalize
from rml._kernels.rope_py import rope_angles as rope_angles
from rml._kernels.rope_py import rotate as rotate
from rml._kernels.route_py import route as route


@dataclass(frozen=True, slots=True)
class Operation:
    """What a plan needs to know of a kernel that it can record.

    Attributes
    ----------
    twin : str
        Class of the compiled module, whose arguments are checked once.
    cost : callable
        From the kernel's arguments to their `Cost`.
    """

    twin: str
    cost: Callable[..., Cost]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel.

    Attributes
    ----------
    definition : function
        As it is defined; its name is the kernel's, and that of the compiled twin.
    outputs : tuple of str
        Arguments that it writes to.
    operation : Operation or None
        None if it is only called by itself.
    """

    definition: Callable[..., None]
    outputs: tuple[str, ...] = ("out",)
    operation: Operation | None = None

    @property
    def name(self) -> str:
        """What the kernel is called everywhere."""
        return self.definition.__name__


REGISTRY = {
    kernel.name: kernel
    for kernel in (
        Kernel(accumulate, ("x",), Operation("Accumulate", costs.accumulate)),
        Kernel(add, ("x",), Operation("Add", costs.nothing)),
        Kernel(attend, ("out",), Operation("Attend", costs.attend)),
        Kernel(bpe_merge, ("symbols",)),
        Kernel(choose),
        Kernel(dequantize),
        Kernel(embed, ("out",), Operation("Embed", costs.embed)),
        Kernel(largest, ("ids", "out")),
        Kernel(log_sum_exp),
        Kernel(matmul_glu, ("out",), Operation("MatmulGlu", costs.matmul_glu)),
        Kernel(matmul_many, ("outs",), Operation("MatmulMany", costs.matmul_many)),
        Kernel(mix_experts, ("out",), Operation("MixExperts", costs.mix_experts)),
        Kernel(penalize, ("logits",)),
        Kernel(rms_norm, ("out",), Operation("RmsNorm", costs.nothing)),
        Kernel(rope_angles, ("cos", "sin"), Operation("RopeAngles", costs.nothing)),
        Kernel(rotate, ("x",), Operation("Rotate", costs.nothing)),
        Kernel(route, ("ids", "weights"), Operation("Route", costs.nothing)),
        Kernel(spm_merge, ("ids",)),
        Kernel(store_kv, ("pages",), Operation("StoreKV", costs.nothing)),
    )
}
