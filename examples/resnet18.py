"""TID of a residual network from torch's own modules: the paper's comparison with a vision model.

    python examples/resnet18.py --cifar10 cifar-10-binary.tar.gz [--epochs N]
    python examples/resnet18.py [--epochs N]

ResNet-18 (He et al., 2016, with CIFAR's first layer) on CIFAR-10, as in the paper's Figure 2; or,
without the archive, a small network on the digits of scikit-learn, in ten seconds. On a GPU where
there is one. Prints TID and deviation of every batch norm before and after training, and the
accuracy on unseen images.
"""

import argparse
import itertools
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Optional

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from rbn_fairseq.diagnostics import average_tid, collect_moments, deviation, tid

RESNET18 = (64, 128, 256, 512)  # channels of its four stages, of two blocks each


class Block(nn.Module):
    """Two convolutions with batch norms and a residual connection."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        stride = 1 if inputs == channels else 2
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != channels:
            projection = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, C, H, W)``; where the channels grow, half as high and wide."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.shortcut(x) + self.norm2(self.conv2(hidden)))


def build(inputs: int, stages: Sequence[int], blocks: int = 2) -> nn.Module:
    """Return a network for images ``(N, inputs, H, W)`` in 10 classes."""
    first = (nn.Conv2d(inputs, stages[0], 3, padding=1, bias=False), nn.BatchNorm2d(stages[0]))
    channels = [stage for stage in stages for _ in range(blocks)]
    body = (Block(*pair) for pair in itertools.pairwise([stages[0], *channels]))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(stages[-1], 10))
    return nn.Sequential(*first, nn.ReLU(), *body, *head)


class Images(NamedTuple):
    """Images ``(N, C, H, W)`` and their classes ``(N,)``."""

    pixels: Tensor
    classes: Tensor


def digits() -> tuple[Images, Images]:
    """Return 1,400 of the digits, 8 x 8 pixels in [0, 1], and the 397 others."""
    data = load_digits()
    pixels = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    classes = torch.tensor(data.target)
    return Images(pixels[:1400], classes[:1400]), Images(pixels[1400:], classes[1400:])


def cifar10(archive: Path) -> tuple[Images, Images]:
    """Read CIFAR-10's training and test images from the binary version of its archive.

    An image is a byte of its class and 3 x 32 x 32 of pixels; each channel is standardised by the
    training images.

    Raises:
        ValueError: if the archive lacks a part, or one is not of whole images.
    """
    parts = {f"data_batch_{number}.bin": 0 for number in range(1, 6)} | {"test_batch.bin": 1}
    read: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    with tarfile.open(archive) as tar:
        members = {PurePosixPath(member.name).name: member for member in tar if member.isreg()}
        for name, side in parts.items():
            file = tar.extractfile(members[name]) if name in members else None
            content = b"" if file is None else file.read()
            if not content or len(content) % 3073:
                raise ValueError(
                    f"`{archive}` has no `{name}` of 3,073 bytes an image: it is not the binary "
                    "version of CIFAR-10, cifar-10-binary.tar.gz."
                )
            read[side].append(np.frombuffer(content, np.uint8).reshape(-1, 3073))
    train, test = (torch.from_numpy(np.concatenate(side)) for side in read)
    pixels = train[:, 1:].view(-1, 3, 32, 32).float()
    mean, std = pixels.mean((0, 2, 3), keepdim=True), pixels.std((0, 2, 3), keepdim=True)
    others = test[:, 1:].view(-1, 3, 32, 32).float()
    return (
        Images((pixels - mean) / std, train[:, 0].long()),
        Images((others - mean) / std, test[:, 0].long()),
    )


def random_batches(number: int, size: int) -> Iterator[Tensor]:
    """Yield indices of batches, as training draws them: at random, each image once an epoch."""
    return iter(torch.randperm(number)[: number // size * size].view(-1, size))


def train(model: nn.Module, images: Images, epochs: int, size: int = 64) -> None:
    """Train with Adam, on images half of which are mirrored where they are coloured."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(epochs):
        for batch in random_batches(len(images.classes), size):
            pixels = images.pixels[batch]
            if pixels.shape[1] == 3:
                mirrored = torch.rand(len(pixels), 1, 1, 1, device=pixels.device) < 0.5
                pixels = pixels.flip(3).where(mirrored, pixels)
            optimizer.zero_grad()
            F.cross_entropy(model(pixels), images.classes[batch]).backward()
            optimizer.step()


def tell(model: nn.Module, images: Images, size: int = 64) -> None:
    """Print what is measured on up to 200 batches drawn as in training."""
    drawn = itertools.islice(random_batches(len(images.classes), size), 200)
    batches = (images.pixels[batch] for batch in drawn)
    layers = collect_moments(model, batches, lambda model, batch: model(batch))
    values = {name: tid(moments) for name, moments in layers.items()}
    form = "{:14}" + 4 * "{:>14}"
    print(form.format("layer", "mean TID", "variance TID", "mean dev.", "variance dev."))
    for name, moments in layers.items():
        row = (*values[name], *deviation(moments))
        print(form.format(name, *(f"{100 * part:.2f} %" for part in row)))
    average = (f"{100 * part:.2f} %" for part in average_tid(values))
    print(form.format("average", *average, "", ""), "\n")


@torch.no_grad()
def accuracy(model: nn.Module, images: Images) -> float:
    """Return the share of images that are told right, in per cent."""
    model.eval()
    right = [
        model(pixels).argmax(1) == classes
        for pixels, classes in zip(images.pixels.split(500), images.classes.split(500), strict=True)
    ]
    return 100 * torch.cat(right).float().mean().item()


def main(archive: Optional[Path] = None, epochs: int = 10) -> None:
    """Measure, train, measure."""
    torch.manual_seed(1)
    if archive is None:
        (images, unseen), model = digits(), build(1, (16,), blocks=3)
    else:
        (images, unseen), model = cifar10(archive), build(3, RESNET18)
    if torch.cuda.is_available():
        model.cuda()
        images, unseen = (Images(*(part.cuda() for part in side)) for side in (images, unseen))
    print("before training")
    tell(model, images)
    train(model, images, epochs)
    right = accuracy(model, unseen)
    print(f"after {epochs} epochs, {right:.1f} % of {len(unseen.classes):,} unseen images right")
    tell(model, images)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cifar10", type=Path, metavar="ARCHIVE", help="cifar-10-binary.tar.gz")
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    main(given.cifar10, given.epochs)
