"""Plain `nn.Module`s: images or tokens in, logits out (no softmax); numbers in, numbers out.

They know nothing of Lightning or of a dataset.
"""

from lit_project.models.cnn import CNN
from lit_project.models.ffnn import FFNN
from lit_project.models.mlp import MLP
from lit_project.models.seq2seq import RNNSeq2Seq, TransformerSeq2Seq
from lit_project.models.small_resnet import SmallResNet
from lit_project.models.torchvision_net import TorchvisionNet

__all__ = ["CNN", "FFNN", "MLP", "RNNSeq2Seq", "SmallResNet", "TorchvisionNet", "TransformerSeq2Seq"]
