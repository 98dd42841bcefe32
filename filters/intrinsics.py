"""Numba's intrinsics, which write LLVM's code themselves: the types of what they are given and give back."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from llvmlite import ir
from numba import extending, types
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature

__all__ = ["Arguments", "Builder", "Context", "Intrinsic", "Kind", "Signature", "intrinsic"]

Kind: TypeAlias = types.Type  # of an operand, as Numba infers it
Context: TypeAlias = BaseContext
Builder: TypeAlias = Any  # of LLVM's instructions; llvmlite makes its methods by decorators without types
Arguments: TypeAlias = Sequence[ir.Value]
Codegen: TypeAlias = Callable[[Context, Builder, Signature, Arguments], ir.Value]
Intrinsic: TypeAlias = tuple[Signature, Codegen]

# what it makes is called with other parameters than it is defined with, and by kernels alone
intrinsic = cast("Callable[[Callable[..., Intrinsic]], Any]", extending.intrinsic)
