"""Compiles every kernel that a forward, a backward and an evaluation launch; needs no GPU.

Run as a program, without TRITON_INTERPRET; prints a line for each binary.
"""

import itertools

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from rbn_fairseq.norms.kernels import affine, backward, forward

TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.bool: "*i1",
    int: "i32",
    float: "fp32",
}
launches = []


def record(kernel, *arguments, grid, warmup):
    launches.append((kernel, arguments))


def source(kernel, arguments):
    signature, constants = {}, {}
    for parameter, argument in zip(kernel.params, arguments, strict=True):
        if parameter.is_constexpr or argument is None:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = argument
        else:
            kind = argument.dtype if isinstance(argument, torch.Tensor) else type(argument)
            signature[parameter.name] = TYPES[kind]
    return ASTSource(kernel, signature, constants)


def launch_all(dtype, valid, clamp, gradients):
    rows, vectors = torch.zeros(8, 64, dtype=dtype), torch.ones(4, 64)
    weight, bias = torch.ones(2, 64, dtype=dtype)
    settings = {"eps": 1e-5, "clamp": clamp, "sync": False}
    forward.normalise(rows, valid, weight, bias, *vectors[2:], momentum=0.1, **settings)
    upstream = vectors[:2] if gradients else (None, None)
    count = torch.ones(())
    backward.differentiate(
        rows, rows, valid, weight, bias, *vectors[2:], count, *upstream, **settings
    )
    affine.transform(rows, *vectors[:2])
    forward._join_parts[1,](vectors, vectors, 2, 31, 128, 16)  # only among processes


def main():
    JITFunction.run = record
    masks = {torch.float32: None, torch.bfloat16: torch.ones(8, dtype=torch.bool)}
    for dtype, valid in masks.items():
        launches.clear()
        launch_all(dtype, valid, clamp=valid is None, gradients=valid is not None)
        for (kernel, arguments), capability in itertools.product(launches, (80, 90)):
            target = GPUTarget("cuda", capability, 32)
            binary = triton.compile(source(kernel, arguments), target=target).asm["cubin"]
            assert binary.startswith(b"\x7fELF")
            print(kernel.fn.__name__, capability, str(dtype).removeprefix("torch."))


if __name__ == "__main__":
    main()
