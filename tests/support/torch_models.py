"""PyTorch models as users write them: `edge-sdk import pytorch` is pointed at the functions of this file."""

import functools
import os
import sys
from collections.abc import Callable

import torch
from torch import nn

CLASSES = 3


class Net(nn.Module):
    """Convolution, batch normalisation, ReLU6, squeeze and excitation, mean, dropout, linear: 1x3x16x16 -> 1x3."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(8)
            self.squeeze = nn.Conv2d(8, 8, 1)
            self.last = nn.Linear(8, CLASSES)
            nn.init.uniform_(self.norm.running_mean, -0.2, 0.2)
            nn.init.uniform_(self.norm.running_var, 0.5, 1.5)
        self.drop = nn.Dropout(0.5)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu6(self.norm(self.first(x)) * 4)
        return x * torch.sigmoid(self.squeeze(nn.functional.adaptive_avg_pool2d(x, 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.features(x).mean((2, 3))))


class Branch(Net):
    limit = 0.4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if x.mean() > self.limit:  # what data decides
            y = y * 2
        return y


class RareBranch(Branch):
    limit = 1e6


class SerialExecutor(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y.reshape(1, CLASSES) if x.shape[0] == 1 else y


class Shapes(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y if x.mean() < 0.4 else y[:, :2]  # what data cuts


class Loop(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        for _ in range(int(x.sum().abs()) % 5):  # what data counts
            y = y + 1
        return y


class Item(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * x.abs().mean().item()


class Random(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, training=True)


class Remembers(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.bias.data += 1
        return super().forward(x)


class Writes(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul_(0.5))


class Outputs(Net):
    def forward(self, x: torch.Tensor) -> dict[str, object]:
        features = self.features(x)
        return {"logits": super().forward(x), "maps": (features, [features.argmax(1)])}


class Changing(Net):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = super().forward(x)
        return {"bright": y} if x.mean() > 0.4 else {"dark": y}


class Two(Net):
    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().forward(x + y) * scale


class Words(Net):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return super().forward(x), "cat"


class Nothing(Net):
    def forward(self, x: torch.Tensor) -> tuple[()]:
        return ()


class Unsupported(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.linalg.svdvals(x[0, 0]).sum()


class BranchUnsupported(Branch):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.linalg.svdvals(x[0, 0]).sum()


class Untranslated(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():  # as it is for torch.export too, but not for tracing
            raise ValueError("not made for torch.export")
        return super().forward(x)


class Narrow(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.bfloat16().sin().float())


class Fails(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.reshape(1, 3, 8, 8))


class Leaves(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sys.exit(3)


class Overflows(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / (x.std() * 0)


class Mask(Net):
    """Has a buffer that is in no state dict, and is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((2,), float("nan")), persistent=False)


class Hidden(nn.Module):
    """A weight of 3 GB that takes 4 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1).expand(750_000_000), requires_grad=False)


net = Net
branch, rare_branch, loop, item = Branch, RareBranch, Loop, Item
alone, shapes, narrow = SerialExecutor, Shapes, Narrow
random, remembers, writes = Random, Remembers, Writes
outputs, changing, two, words, nothing = Outputs, Changing, Two, Words, Nothing
branch_unsupported, untranslated, mask = BranchUnsupported, Untranslated, Mask
unsupported, fails, leaves, overflows, hidden = Unsupported, Fails, Leaves, Overflows, Hidden
ready = Net()
text = "no function"


def training() -> nn.Module:
    return Net().train()


def half() -> nn.Module:
    return Net().half()


def bfloat16() -> nn.Module:
    return Net().bfloat16()


def meta() -> nn.Module:
    return Net().to("meta")


def nan() -> nn.Module:
    model = Net()
    model.last.weight.data[1, 2] = float("nan")
    return model


def four_classes() -> nn.Module:
    model = Net()
    model.last = nn.Linear(8, 4)
    return model


def raises() -> nn.Module:
    return {}["backbone"]


def argument(n: int, m: int = 2, *, k: int) -> nn.Module:
    return nn.Linear(n, m + k)


def _with_classes(function: Callable[[int], nn.Module]) -> Callable[[], nn.Module]:
    """Give the argument, and keep the signature that asks for it."""
    return functools.wraps(function)(lambda: function(CLASSES))


@_with_classes
def decorated(classes: int) -> nn.Module:
    model = Net()
    model.last = nn.Linear(8, classes)
    return model


def noisy() -> nn.Module:
    sys.stdout.write("hello from Python\n")
    os.write(1, b"hello from C\n")
    os.write(2, b"a warning from C\n")
    return Net()
