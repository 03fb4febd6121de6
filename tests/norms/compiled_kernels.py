"""Compiles every kernel that a forward, a backward and an evaluation launch; needs no GPU.

Run as a program, without TRITON_INTERPRET; prints a line for each binary.
"""

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from rbn_fairseq.norms.kernels import backward, forward, function, parts

TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    int: "i32",
    float: "fp32",
}
launches = []


def record(kernel, *arguments, grid, warmup):
    launches.append((kernel, arguments))


def source(kernel, arguments):
    signature, constants = {}, {}
    for parameter, argument in zip(kernel.params, arguments, strict=True):
        one = type(argument) is int and argument == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or argument is None or one:  # as Triton does at a launch
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = argument
        else:
            kind = argument.dtype if isinstance(argument, torch.Tensor) else type(argument)
            signature[parameter.name] = TYPES[kind]
    return ASTSource(kernel, signature, constants)


def launch_all(channels, dtype, clamp, gradients):
    rows, vectors = torch.zeros(8, channels, dtype=dtype), torch.ones(4, channels)
    weight, bias = torch.ones(2, channels, dtype=dtype)
    settings = {"eps": 1e-5, "clamp": clamp, "sync": False}
    forward.normalise_and_move(rows, weight, bias, *vectors[2:], momentum=0.1, **settings)
    upstream = vectors[:2] if gradients else (None, None)
    count = torch.ones(())
    backward.differentiate(rows, rows, weight, bias, *vectors[2:], count, *upstream, **settings)
    function.transform(rows, *vectors[:2])
    sizes = channels, parts.JOINED_PARTS, min(parts.JOINED_CHANNELS, channels)
    parts.join_parts[1,](vectors, vectors, 2, *sizes)  # only among processes


def main():
    JITFunction.run = record
    # The simplest of each, and the hardest.
    for capability, channels, dtype in ((80, 1, torch.float32), (90, 64, torch.bfloat16)):
        launches.clear()
        full = channels > 1
        launch_all(channels, dtype, clamp=not full, gradients=full)
        target = GPUTarget("cuda", capability, 32)
        for kernel, arguments in launches:
            binary = triton.compile(source(kernel, arguments), target=target).asm["cubin"]
            assert binary.startswith(b"\x7fELF")
            print(kernel.fn.__name__, capability)


if __name__ == "__main__":
    main()
