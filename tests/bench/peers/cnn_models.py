"""The networks of bench_cnn in PyTorch: torchvision's ResNet-50, transformers' SegFormer-B0, and the others as modules/
has them, with the same parameters. loss(images, targets) is what a training step differentiates."""
import torch
from torch import nn
from torch.nn import functional as F

CLASSES, IGNORED = 19, 255


def resize_like(x, like):
    return F.interpolate(x, like.shape[2:], mode="bilinear", align_corners=False)


def nearest_like(x, like):
    return F.interpolate(x, like.shape[2:])


def global_mean(x):
    return x.mean((2, 3), keepdim=True)


def pixel_loss(logits, targets):
    full = F.interpolate(logits, targets.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(full, targets, ignore_index=IGNORED)


class ConvNormReLU(nn.Module):
    def __init__(self, inputs, outputs, kernel, stride=1, groups=1, relu=True):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.relu = relu

    def forward(self, x):
        y = self.bn(self.conv(x))
        return F.relu(y) if self.relu else y


class Head(nn.Module):
    def __init__(self, inputs, inner, classes):
        super().__init__()
        self.conv = ConvNormReLU(inputs, inner, 3)
        self.classifier = nn.Conv2d(inner, classes, 1, bias=False)

    def forward(self, x):
        return self.classifier(self.conv(x))


# ---- STDC


class STDCBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.convs = nn.ModuleList([ConvNormReLU(inputs, outputs // 2, 1), ConvNormReLU(outputs // 2, outputs // 4, 3),
                                    ConvNormReLU(outputs // 4, outputs // 8, 3),
                                    ConvNormReLU(outputs // 8, outputs // 8, 3)])
        half = outputs // 2
        self.down = ConvNormReLU(half, half, 3, stride, groups=half, relu=False) if stride > 1 else None

    def forward(self, x):
        first = self.convs[0](x)
        second = self.convs[1](first if self.down is None else self.down(first))
        third = self.convs[2](second)
        fourth = self.convs[3](third)
        kept = first if self.down is None else F.avg_pool2d(first, 3, 2, 1)
        return torch.cat([kept, second, third, fourth], 1)


class STDCBackbone(nn.Module):
    def __init__(self, layers=(2, 2, 2), width=64):
        super().__init__()
        self.stem = nn.Sequential(ConvNormReLU(3, width // 2, 3, 2), ConvNormReLU(width // 2, width, 3, 2))
        inputs, outputs = width, 4 * width
        self.stages = nn.ModuleList()
        for n in layers:
            self.stages.append(nn.Sequential(*[STDCBlock(inputs if i == 0 else outputs, outputs, 2 if i == 0 else 1)
                                               for i in range(n)]))
            inputs, outputs = outputs, 2 * outputs

    def forward(self, x):
        features = []
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class STDCRefinement(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = ConvNormReLU(inputs, outputs, 3)
        self.gate = ConvNormReLU(outputs, outputs, 1, relu=False)

    def forward(self, x):
        y = self.conv(x)
        return y * torch.sigmoid(self.gate(global_mean(y)))


class STDCFusion(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = ConvNormReLU(inputs, outputs, 1)
        self.squeeze = nn.Conv2d(outputs, outputs // 4, 1, bias=False)
        self.excite = nn.Conv2d(outputs // 4, outputs, 1, bias=False)

    def forward(self, x):
        y = self.conv(x)
        return y + y * torch.sigmoid(self.excite(F.relu(self.squeeze(global_mean(y)))))


def detail_targets(targets, laplacian):
    with torch.no_grad():
        classes = targets.float().unsqueeze(1)
        total = 0
        for stride, weight in ((1, 0.6), (2, 0.3), (4, 0.1)):
            edges = F.conv2d(classes, laplacian, stride=stride, padding=1)
            total = total + F.interpolate((edges > 0.1).float(), targets.shape[1:]) * weight
        return (total > 0.1).float()


def detail_loss(logits, targets):
    full = resize_like(logits, targets)
    want = targets.to(full.dtype)
    p, t = torch.sigmoid(full).flatten(1), want.flatten(1)
    dice = 1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)
    return F.binary_cross_entropy_with_logits(full, want) + dice.mean()


class STDCSeg(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.backbone = STDCBackbone(width=width)
        self.arm16, self.arm32 = STDCRefinement(8 * width, 128), STDCRefinement(16 * width, 128)
        self.conv_avg = ConvNormReLU(16 * width, 128, 1)
        self.conv_head32, self.conv_head16 = ConvNormReLU(128, 128, 3), ConvNormReLU(128, 128, 3)
        self.ffm = STDCFusion(4 * width + 128, 256)
        self.conv_out = Head(256, 256, CLASSES)
        self.conv_out16, self.conv_out32 = Head(128, 64, CLASSES), Head(128, 64, CLASSES)
        self.detail = Head(4 * width, 64, 1)
        laplacian = torch.tensor([-1., -1, -1, -1, 8, -1, -1, -1, -1]).reshape(1, 1, 3, 3)
        self.register_buffer("laplacian", laplacian, persistent=False)

    def loss(self, images, targets):
        at8, at16, at32 = self.backbone(images)
        context32 = self.arm32(at32) + nearest_like(self.conv_avg(global_mean(at32)), at32)
        context16 = self.conv_head32(nearest_like(context32, at16))
        context8 = self.conv_head16(nearest_like(self.arm16(at16) + context16, at8))
        fused = self.ffm(torch.cat([at8, context8], 1))
        parts = [pixel_loss(head(x), targets) for head, x in
                 ((self.conv_out, fused), (self.conv_out16, context8), (self.conv_out32, context16))]
        return sum(parts) + detail_loss(self.detail(at8), detail_targets(targets, self.laplacian))


# ---- PP-LiteSeg


class PyramidPooling(nn.Module):
    def __init__(self, inputs, outputs, bins=(1, 2, 4)):
        super().__init__()
        self.bins = bins
        self.stages = nn.ModuleList([ConvNormReLU(inputs, outputs, 1) for _ in bins])
        self.conv_out = ConvNormReLU(outputs, outputs, 3)

    def forward(self, x):
        parts = [resize_like(stage(F.adaptive_avg_pool2d(x, n)), x) for stage, n in zip(self.stages, self.bins)]
        return self.conv_out(sum(parts[1:], parts[0]))


class AttentionFusion(nn.Module):
    def __init__(self, low, high, outputs):
        super().__init__()
        self.conv_low = ConvNormReLU(low, high, 3)
        self.attention1 = ConvNormReLU(4, 2, 3)
        self.attention2 = ConvNormReLU(2, 1, 3, relu=False)
        self.conv_out = ConvNormReLU(high, outputs, 3)

    def forward(self, low, high):
        low, high = self.conv_low(low), resize_like(high, low)
        maps = [t for x in (low, high) for t in (x.mean(1, keepdim=True), x.amax(1, keepdim=True))]
        a = torch.sigmoid(self.attention2(self.attention1(torch.cat(maps, 1))))
        return self.conv_out(low * a + high * (1 - a))


class PPLiteSeg(nn.Module):
    def __init__(self, decoder=(32, 64, 128), pyramid=128, head=64, width=64):
        super().__init__()
        self.encoder = STDCBackbone(width=width)
        self.pooling = PyramidPooling(16 * width, pyramid)
        self.fusions = nn.ModuleList([AttentionFusion(4 * width << i, pyramid if i == 2 else decoder[i + 1], n)
                                      for i, n in enumerate(decoder)])
        self.heads = nn.ModuleList([Head(n, head, CLASSES) for n in decoder])

    def loss(self, images, targets):
        features = self.encoder(images)
        high = self.pooling(features[2])
        total = 0
        for i in (2, 1, 0):
            high = self.fusions[i](features[i], high)
            total = total + pixel_loss(self.heads[i](high), targets)
        return total


# ---- DDRNet


class DDRBlock(nn.Module):
    def __init__(self, inputs, channels, stride=1, bottleneck=False, relu=True):
        super().__init__()
        outputs = 2 * channels if bottleneck else channels
        if bottleneck:
            self.convs = nn.Sequential(ConvNormReLU(inputs, channels, 1), ConvNormReLU(channels, channels, 3, stride),
                                       ConvNormReLU(channels, outputs, 1, relu=False))
        else:
            self.convs = nn.Sequential(ConvNormReLU(inputs, channels, 3, stride),
                                       ConvNormReLU(channels, outputs, 3, relu=False))
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else ConvNormReLU(inputs, outputs, 1, stride, relu=False)
        self.relu = relu

    def forward(self, x):
        y = self.convs(x) + (x if self.shortcut is None else self.shortcut(x))
        return F.relu(y) if self.relu else y


def ddr_layer(inputs, channels, stride):
    return nn.Sequential(DDRBlock(inputs, channels, stride), DDRBlock(channels, channels, relu=False))


class NormReLUConv(nn.Module):
    def __init__(self, inputs, outputs, kernel, bias=False):
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias)

    def forward(self, x):
        return self.conv(F.relu(self.bn(x)))


class DeepPyramidPooling(nn.Module):
    def __init__(self, inputs, branch, outputs):
        super().__init__()
        self.scales = nn.ModuleList([NormReLUConv(inputs, branch, 1) for _ in range(5)])
        self.processes = nn.ModuleList([NormReLUConv(branch, branch, 3) for _ in range(4)])
        self.compression = NormReLUConv(5 * branch, outputs, 1)
        self.shortcut = NormReLUConv(inputs, outputs, 1)

    def forward(self, x):
        parts = [self.scales[0](x)]
        for i in range(1, 5):
            stride = 2 ** i
            mean = global_mean(x) if i == 4 else F.avg_pool2d(x, 2 * stride + 1, stride, stride)
            parts.append(self.processes[i - 1](resize_like(self.scales[i](mean), x) + parts[-1]))
        return self.compression(torch.cat(parts, 1)) + self.shortcut(x)


def ddr_head(inputs, inner):
    return nn.Sequential(NormReLUConv(inputs, inner, 3), NormReLUConv(inner, CLASSES, 1, bias=True))


class DDRNet(nn.Module):
    def __init__(self, w=32, pyramid=128, head=64, extra_weight=0.4):
        super().__init__()
        self.extra_weight = extra_weight
        self.stem = nn.Sequential(ConvNormReLU(3, w, 3, 2), ConvNormReLU(w, w, 3, 2))
        self.layer1, self.layer2 = ddr_layer(w, w, 1), ddr_layer(w, 2 * w, 2)
        self.layer3, self.layer4 = ddr_layer(2 * w, 4 * w, 2), ddr_layer(4 * w, 8 * w, 2)
        self.layer5 = DDRBlock(8 * w, 8 * w, 2, bottleneck=True, relu=False)
        self.high3, self.high4 = ddr_layer(2 * w, 2 * w, 1), ddr_layer(2 * w, 2 * w, 1)
        self.high5 = DDRBlock(2 * w, 2 * w, bottleneck=True, relu=False)
        self.compression3 = ConvNormReLU(4 * w, 2 * w, 1, relu=False)
        self.compression4 = ConvNormReLU(8 * w, 2 * w, 1, relu=False)
        self.down3 = ConvNormReLU(2 * w, 4 * w, 3, 2, relu=False)
        self.down4 = nn.Sequential(ConvNormReLU(2 * w, 4 * w, 3, 2), ConvNormReLU(4 * w, 8 * w, 3, 2, relu=False))
        self.pooling = DeepPyramidPooling(16 * w, pyramid, 4 * w)
        self.head, self.extra_head = ddr_head(4 * w, head), ddr_head(2 * w, head)

    def loss(self, images, targets):
        at8 = self.layer2(F.relu(self.layer1(self.stem(images))))
        at16 = self.layer3(F.relu(at8))
        high_a = self.high3(F.relu(at8))
        low_a = at16 + self.down3(F.relu(high_a))
        high_b = high_a + resize_like(self.compression3(F.relu(at16)), at8)
        at32 = self.layer4(F.relu(low_a))
        high_c = self.high4(F.relu(high_b))
        low_b = at32 + self.down4(F.relu(high_c))
        high_d = high_c + resize_like(self.compression4(F.relu(at32)), at8)
        high = self.high5(F.relu(high_d))
        last = resize_like(self.pooling(self.layer5(F.relu(low_b))), at8) + high
        return pixel_loss(self.head(last), targets) + self.extra_weight * pixel_loss(self.extra_head(high_b), targets)


# ---- RegSeg


class RegSegBlock(nn.Module):
    def __init__(self, inputs, outputs, dilations, width, stride):
        super().__init__()
        self.stride = stride
        self.conv1 = ConvNormReLU(inputs, outputs, 1)
        part = outputs // len(dilations)
        self.conv2 = nn.ModuleList([nn.Conv2d(part, part, 3, stride, d, d, part // width, bias=False)
                                    for d in dilations])
        self.bn2 = nn.BatchNorm2d(outputs)
        self.squeeze, self.excite = nn.Conv2d(outputs, inputs // 4, 1), nn.Conv2d(inputs // 4, outputs, 1)
        self.conv3 = ConvNormReLU(outputs, outputs, 1, relu=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else ConvNormReLU(inputs, outputs, 1, relu=False)

    def forward(self, x):
        y = self.conv1(x)
        parts = y.chunk(len(self.conv2), 1)
        y = torch.cat([conv(part) for conv, part in zip(self.conv2, parts)], 1)
        y = F.relu(self.bn2(y))
        y = y * torch.sigmoid(self.excite(F.relu(self.squeeze(global_mean(y)))))
        small = x if self.stride == 1 else F.avg_pool2d(x, 2, 2, ceil_mode=True)
        return F.relu(self.conv3(y) + (small if self.shortcut is None else self.shortcut(small)))


class RegSeg(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        dilations = [[1], [1, 2]] + [[1, 4]] * 4 + [[1, 14]] * 7
        self.stem = ConvNormReLU(3, 32, 3, 2)
        self.stage4 = RegSegBlock(32, 48, [1], width, 2)
        self.stage8 = nn.Sequential(RegSegBlock(48, 128, [1], width, 2), RegSegBlock(128, 128, [1], width, 1),
                                    RegSegBlock(128, 128, [1], width, 1))
        blocks = [RegSegBlock(128, 256, [1], width, 2)]
        for i, d in enumerate(dilations):
            blocks.append(RegSegBlock(256, 256 if i + 1 < len(dilations) else 320, d, width, 1))
        self.stage16 = nn.Sequential(*blocks)
        self.head16, self.head8, self.head4 = ConvNormReLU(320, 128, 1), ConvNormReLU(128, 128, 1), ConvNormReLU(48, 8, 1)
        self.conv8, self.conv4 = ConvNormReLU(128, 64, 3), ConvNormReLU(72, 64, 3)
        self.classifier = nn.Conv2d(64, CLASSES, 1)

    def loss(self, images, targets):
        at4 = self.stage4(self.stem(images))
        at8 = self.stage8(at4)
        at16 = self.stage16(at8)
        joined8 = self.conv8(self.head8(at8) + resize_like(self.head16(at16), at8))
        logits = self.classifier(self.conv4(torch.cat([resize_like(joined8, at4), self.head4(at4)], 1)))
        return pixel_loss(logits, targets)


# ---- Published ones


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        import torchvision

        self.net = torchvision.models.resnet50()

    def loss(self, images, targets):
        return F.cross_entropy(self.net(images), targets)


class Segformer(nn.Module):
    def __init__(self):
        super().__init__()
        import transformers

        config = transformers.SegformerConfig(num_labels=CLASSES, semantic_loss_ignore_index=IGNORED)
        self.net = transformers.SegformerForSemanticSegmentation(config)

    def loss(self, images, targets):
        return self.net(images, labels=targets).loss


MODELS = {"pp_liteseg": PPLiteSeg, "regseg": RegSeg, "segformer": Segformer, "stdc": STDCSeg, "ddrnet": DDRNet,
          "resnet50": ResNet50}
