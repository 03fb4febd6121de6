"""TID of a residual network from torch's own modules, on the digits of scikit-learn.

    python examples/digits.py [EPOCHS]

The paper compares a Transformer with a ResNet18 (its Figure 2); this is the same measurement on a
network that fits anywhere. Prints TID and deviation of every batch norm before and after training.
"""

import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from rbn_fairseq.diagnostics import average_tid, collect_moments, deviation, tid


class Block(nn.Module):
    """Two convolutions with batch norms and a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, C, H, W)`` to the same shape."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(hidden)))


def build(channels: int = 16, blocks: int = 3) -> nn.Module:
    """Return a network for images of 8 x 8 pixels in 10 classes."""
    stem = (nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
    body = (Block(channels) for _ in range(blocks))
    return nn.Sequential(
        *stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )


def load() -> tuple[Tensor, Tensor]:
    """Return the 1,797 images ``(N, 1, 8, 8)`` in [0, 1] and their classes."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(digits.target)


def random_batches(number: int, size: int = 64) -> Iterator[Tensor]:
    """Yield indices of batches, as training draws them: at random, each image once an epoch."""
    return iter(torch.randperm(number)[: number // size * size].view(-1, size))


def train(model: nn.Module, images: Tensor, classes: Tensor, epochs: int) -> None:
    """Train with Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(epochs):
        for batch in random_batches(len(images)):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), classes[batch]).backward()
            optimizer.step()


def tell(model: nn.Module, images: Tensor) -> None:
    """Print what is measured on batches drawn as in training."""
    batches = (images[batch] for batch in random_batches(len(images)))
    layers = collect_moments(model, batches, lambda model, batch: model(batch))
    values = {name: tid(moments) for name, moments in layers.items()}
    form = "{:10}" + 4 * "{:>14}"
    print(form.format("layer", "mean TID", "variance TID", "mean dev.", "variance dev."))
    for name, moments in layers.items():
        row = (*values[name], *deviation(moments))
        print(form.format(name, *(f"{100 * part:.2f} %" for part in row)))
    average = (f"{100 * part:.2f} %" for part in average_tid(values))
    print(form.format("average", *average, "", ""), "\n")


def main(epochs: int = 10) -> None:
    """Measure, train, measure."""
    torch.manual_seed(1)
    images, classes = load()
    model = build()
    print("before training")
    tell(model, images)
    train(model, images[:1400], classes[:1400], epochs)
    model.eval()
    right = (model(images[1400:]).argmax(1) == classes[1400:]).float().mean()
    print(f"after {epochs} epochs, {100 * right:.1f} % of 397 unseen images right")
    tell(model, images[:1400])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
