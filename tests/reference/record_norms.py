#!/usr/bin/env python3
"""Writes channel_norms.safetensors, as modules/channel_norm_test.cc reads it.

    record_norms.py [FOLDER]

<case>.x<i>, <case>.grad<i>: the input of step i and the gradient of the layer's result. <case>.y<i>, <case>.dx<i>;
<case>.d.<parameter><i>; <case>.state.<name><i>: what state_dict() holds after the step. <case>.start.<name>: before the
first. <case>.eval, <case>.eval_dx: of the first input, in evaluation. The last input of a batch norm's case is empty.

net.*: a small network (Net of the test) trained for ten steps of SGD with momentum: net.start.<name>, net.images,
net.targets, net.losses, net.end.<name>, net.logits (in evaluation, after the steps).
"""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from record import Source, save


def randomise(source, module):
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(source.normal(*p.shape, mean=0.5))


def record_layer(out, source, case, layer, shapes, mean=0.0):
    layer = layer.double()
    randomise(source, layer)
    out |= {f"{case}.start.{name}": t.clone() for name, t in layer.state_dict().items()}
    first = None
    for i, shape in enumerate(shapes):
        x = source.normal(*shape, mean=mean).requires_grad_()
        first = x if first is None else first
        y = layer(x)
        grad = source.normal(*shape)
        layer.zero_grad()
        y.backward(grad)
        out |= {f"{case}.x{i}": x, f"{case}.grad{i}": grad, f"{case}.y{i}": y, f"{case}.dx{i}": x.grad}
        out |= {f"{case}.d.{name}{i}": p.grad.clone() for name, p in layer.named_parameters()}
        out |= {f"{case}.state.{name}{i}": t.clone() for name, t in layer.state_dict().items()}
    layer.eval()
    x = first.detach().clone().requires_grad_()
    y = layer(x)
    y.backward(out[f"{case}.grad0"])
    out |= {f"{case}.eval": y, f"{case}.eval_dx": x.grad}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8, momentum=None)
        self.norm = nn.GroupNorm(2, 8)
        self.fc1 = nn.Linear(8, 6)
        self.bn3 = nn.BatchNorm1d(6, momentum=0.3)
        self.fc2 = nn.Linear(6, 5)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)) + x)
        x = self.norm(x).mean((2, 3))
        return self.fc2(F.relu(self.bn3(self.fc1(x))))


def record_net(out, source):
    torch.manual_seed(5)
    net = Net().double()
    for norm in (net.bn1, net.bn2, net.bn3, net.norm):
        randomise(source, norm)
    out |= {f"net.start.{name}": t.clone() for name, t in net.state_dict().items()}
    images, targets = source.normal(6, 3, 5, 7), source.ids(5, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(10):
        loss = F.cross_entropy(net(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    out |= {"net.images": images, "net.targets": targets, "net.losses": torch.stack(losses)}
    out |= {f"net.end.{name}": t.clone() for name, t in net.state_dict().items()}
    out["net.logits"] = net.eval()(images)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    out, source = {}, Source(9)
    images = [(4, 3, 5, 6), (1, 3, 2, 2), (0, 3, 2, 2)]
    record_layer(out, source, "bn2d", nn.BatchNorm2d(3), images, mean=2.0)
    record_layer(out, source, "bn2d_momentum", nn.BatchNorm2d(3, eps=1e-3, momentum=0.4), images)
    record_layer(out, source, "bn2d_cumulative", nn.BatchNorm2d(3, momentum=None), images)
    record_layer(out, source, "bn2d_plain", nn.BatchNorm2d(3, affine=False), images)
    record_layer(out, source, "bn2d_batch_only", nn.BatchNorm2d(3, track_running_stats=False), images)
    record_layer(out, source, "bn1d", nn.BatchNorm1d(5), [(7, 5), (2, 5), (0, 5)])
    record_layer(out, source, "bn1d_rows", nn.BatchNorm1d(4), [(3, 4, 6), (1, 4, 2)])
    record_layer(out, source, "gn", nn.GroupNorm(2, 6), [(3, 6, 4, 5), (2, 6)])
    record_layer(out, source, "gn_each", nn.GroupNorm(4, 4, eps=1e-3), [(2, 4, 3)], mean=1.0)
    record_layer(out, source, "gn_one", nn.GroupNorm(1, 6, affine=False), [(2, 6, 3, 2)])
    record_net(out, source)
    save(os.path.join(folder, "channel_norms.safetensors"), out)


if __name__ == "__main__":
    main()
