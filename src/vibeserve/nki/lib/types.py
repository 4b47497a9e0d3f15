"""The enums by which kernels name their variants. Members support == and != only, as the language asks."""

from __future__ import annotations

from enum import Enum


class NormType(Enum):
    """The norm before a projection."""

    NO_NORM = 0
    RMS_NORM = 1
    LAYER_NORM = 2
    RMS_NORM_SKIP_GAMMA = 3


class ActFnType(Enum):
    """The activation function of an MLP."""

    SiLU = 0
    GELU = 1
    GELU_Tanh_Approx = 2
    Swish = 3
    ReLU = 4
    Identity = 5


class QuantizationType(Enum):
    """How weights or activations are quantised: not, one scale a tensor, one a row, or in groups of 32."""

    NONE = 0
    STATIC = 1
    ROW = 2
    MX = 3


class QKVOutputLayout(Enum):
    """The order of a QKV projection's result: batch, sequence, width; or heads outermost, d before or after s."""

    BSD = 0
    NBSd = 1
    NBdS = 2


class QKVWeightLayout(Enum):
    """The order of a fused QKV weight."""

    CONTIGUOUS = 0
    MX_CONTIGUOUS = 1
    MX_INTERLEAVED = 2


class GateUpDim(Enum):
    """The index of the gate and the up projection in a fused weight."""

    GATE = 0
    UP = 1


class RouterActFnType(Enum):
    """How a router turns logits into affinities."""

    SIGMOID = 0
    SOFTMAX = 1


class ExpertAffinityScaleMode(Enum):
    """Where an expert's affinity is multiplied in."""

    NO_SCALE = 0
    POST_SCALE = 1
    PRE_SCALE = 2
    PRE_SCALE_DELAYED = 3
