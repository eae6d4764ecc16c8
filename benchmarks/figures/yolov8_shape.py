"""A detector of YOLOv8n's shape with random weights: it times what such a detector costs; what it finds means nothing.

Layers, widths and depths are those of
the published architecture at its smallest scale: a backbone of strided convolutions and cross-stage blocks, a pyramid
pooling, a feature pyramid up and down, and for each of three strides a box branch of 4 x 16 distances and a branch of
80 classes. Its output is (1, 84, 8400): boxes as centre and size in pixels, then scores.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_CLASSES, _DISTANCES, _SIZE = 80, 16, 640
_STRIDES = (8, 16, 32)
_SEED = 8
_PICTURES = 2
_BLOCKS = (10, 40, 160)
_CALM = 0.01  # of the boxes' weights: sharp distances would make large differences of roundings
_RARE, _SPREAD = -7.0, 0.2
"""Of the classes' biases and weights: a trained detector finds little in most places, and so must this one."""


class Unit(nn.Sequential):
    """Convolution, batch normalization, SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()
        )


class Bottleneck(nn.Module):
    """Two 3x3 units, with a way around them where `around`."""

    def __init__(self, channels: int, *, around: bool) -> None:
        super().__init__()
        self.units = nn.Sequential(Unit(channels, channels, 3), Unit(channels, channels, 3))
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        """(1, C, H, W) to the same."""
        return x + self.units(x) if self.around else self.units(x)


class CrossStage(nn.Module):
    """Half of the channels go through bottlenecks; every step's result is joined."""

    def __init__(self, inputs: int, outputs: int, depth: int, *, around: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = Unit(inputs, outputs)
        self.steps = nn.ModuleList(Bottleneck(half, around=around) for _ in range(depth))
        self.leave = Unit(half * (2 + depth), outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(1, inputs, H, W) to (1, outputs, H, W)."""
        parts = list(self.enter(x).chunk(2, 1))
        for step in self.steps:
            parts.append(step(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """Three poolings in a row, joined with what they pool."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.pool = Unit(channels, channels // 2), nn.MaxPool2d(5, 1, 2)
        self.leave = Unit(channels * 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(1, C, H, W) to the same."""
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class Detector(nn.Module):
    """The whole network for pictures of 640x640."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Sequential(
            Unit(3, 16, 3, 2), Unit(16, 32, 3, 2), CrossStage(32, 32, 1, around=True), Unit(32, 64, 3, 2),
            CrossStage(64, 64, 2, around=True),
        )  # fmt: skip
        self.middle = nn.Sequential(Unit(64, 128, 3, 2), CrossStage(128, 128, 2, around=True))
        self.high = nn.Sequential(Unit(128, 256, 3, 2), CrossStage(256, 256, 1, around=True), Pyramid(256))
        self.up = nn.Upsample(scale_factor=2)
        self.up_middle = CrossStage(384, 128, 1, around=False)
        self.up_low = CrossStage(192, 64, 1, around=False)
        self.down_low, self.down_middle = Unit(64, 64, 3, 2), Unit(128, 128, 3, 2)
        self.out_middle = CrossStage(192, 128, 1, around=False)
        self.out_high = CrossStage(384, 256, 1, around=False)
        self.boxes = nn.ModuleList(_branch(c, 64, 4 * _DISTANCES) for c in (64, 128, 256))
        self.classes = nn.ModuleList(_branch(c, 80, _CLASSES) for c in (64, 128, 256))
        centres = [_centres(stride) for stride in _STRIDES]
        self.register_buffer("centres", torch.cat([c for c, _ in centres], 1)[None])
        self.register_buffer("strides", torch.cat([s for _, s in centres])[None, None])
        self.register_buffer("steps", torch.arange(_DISTANCES, dtype=torch.float32).reshape(1, _DISTANCES, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 640, 640) to (N, 84, 8400)."""
        low = self.low(x)
        middle = self.middle(low)
        high = self.high(middle)
        middle = self.up_middle(torch.cat([self.up(high), middle], 1))
        low = self.up_low(torch.cat([self.up(middle), low], 1))
        middle = self.out_middle(torch.cat([self.down_low(low), middle], 1))
        high = self.out_high(torch.cat([self.down_middle(middle), high], 1))
        levels = (low, middle, high)
        sides = torch.cat([b(v).flatten(2) for b, v in zip(self.boxes, levels, strict=True)], 2)
        scores = torch.cat([c(v).flatten(2) for c, v in zip(self.classes, levels, strict=True)], 2)
        shares = sides.reshape(len(sides), 4, _DISTANCES, -1).transpose(1, 2).softmax(1)
        before, after = (shares * self.steps).sum(1).chunk(2, 1)
        first, last = self.centres - before, self.centres + after
        return torch.cat([torch.cat([(first + last) / 2, last - first], 1) * self.strides, scores.sigmoid()], 1)


def make() -> nn.Module:
    """The detector, its random weights always the same."""
    torch.manual_seed(_SEED)
    detector = Detector()
    for boxes, classes in zip(detector.boxes, detector.classes, strict=True):
        nn.init.normal_(boxes[-1].weight, std=_CALM)
        nn.init.normal_(classes[-1].weight, std=_SPREAD)
        nn.init.constant_(classes[-1].bias, _RARE)
    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over all pictures
    # Normalized on pictures of blocks of every size, every layer's values are about as large as a trained one's.
    blocks = [nn.functional.interpolate(torch.rand(_PICTURES, 3, n, n), size=(_SIZE, _SIZE)) for n in _BLOCKS]
    with torch.no_grad():
        detector.train()(torch.cat(blocks))
    return detector.eval()


def _branch(inputs: int, channels: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(Unit(inputs, channels, 3), Unit(channels, channels, 3), nn.Conv2d(channels, outputs, 1))


def _centres(stride: int) -> tuple[Tensor, Tensor]:
    """Of the cells of one level, (2, N) in cells, and the stride of each, (N,)."""
    count = _SIZE // stride
    y, x = torch.meshgrid(torch.arange(count) + 0.5, torch.arange(count) + 0.5, indexing="ij")
    return torch.stack([x.reshape(-1), y.reshape(-1)]), torch.full((count * count,), float(stride))
