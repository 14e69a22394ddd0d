"""The models in PyTorch, for the frameworks that train PyTorch models."""

import common
import numpy as np
import torch
from torch import nn


def data(work: common.Work) -> tuple[torch.Tensor, torch.Tensor]:
  """Returns all pixels, uint8 [N, 1, 28, 28], and labels, int64 [N]."""
  x = torch.from_numpy(work.x.reshape(-1, 1, 28, 28))
  return x, torch.from_numpy(work.y).long()


class LeNet5(nn.Module):
  """LeNet-5 with tanh and average pooling, from pixels to logits.

  Args:
    weights: the Keras model's weights, in the order of `common.Work`.
  """

  def __init__(self, weights: list[np.ndarray]) -> None:
    super().__init__()
    self.layers = nn.Sequential(
      nn.Conv2d(1, 6, 5),
      nn.Tanh(),
      nn.AvgPool2d(2),
      nn.Conv2d(6, 16, 5),
      nn.Tanh(),
      nn.AvgPool2d(2),
      nn.Flatten(),
      nn.Linear(256, 120),
      nn.Tanh(),
      nn.Linear(120, 84),
      nn.Tanh(),
      nn.Linear(84, 10),
    )
    with torch.no_grad():
      for parameter, weight in zip(self.parameters(), weights, strict=True):
        if weight.shape == (256, 120):
          # Keras flattens [4, 4, 16], PyTorch [16, 4, 4]: reorders the rows
          # once instead of every activation.
          weight = weight.reshape(4, 4, 16, 120).transpose(2, 0, 1, 3)
          weight = weight.reshape(256, 120)
        # Reverses the axes, except for the two of the image: [5, 5, in, out]
        # to [out, in, 5, 5].
        axes = (3, 2, 0, 1) if weight.ndim == 4 else range(weight.ndim)[::-1]
        parameter.copy_(torch.from_numpy(weight.transpose(axes).copy()))

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    """Returns logits [B, 10] of pixels, uint8 [B, 1, 28, 28]."""
    return self.layers(x.float() / 255)


class Dense(nn.Module):
  """Dense layers with tanh, from pixels to logits.

  Args:
    weights: the Keras model's weights, in the order of `common.Work`.
  """

  def __init__(self, weights: list[np.ndarray]) -> None:
    super().__init__()
    layers: list[nn.Module] = [nn.Flatten()]
    for kernel in weights[::2]:
      layers += [nn.Linear(*kernel.shape), nn.Tanh()]
    self.layers = nn.Sequential(*layers[:-1])
    with torch.no_grad():
      for parameter, weight in zip(self.parameters(), weights, strict=True):
        parameter.copy_(torch.from_numpy(weight.T.copy()))

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    """Returns logits [B, 10] of pixels, uint8 [B, 1, 28, 28]."""
    return self.layers(x.float() / 255)


def model_class(work: common.Work) -> type[nn.Module]:
  """Returns the class of the workload's model."""
  return Dense if work.dense else LeNet5


def batch_loss(
  model: nn.Module, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
  """Returns the cross-entropy summed over a batch."""
  return nn.functional.cross_entropy(model(x), y, reduction='sum')


def test_loss(model: nn.Module, work: common.Work) -> float:
  """Returns the mean cross-entropy on the test examples."""
  x = torch.from_numpy(work.x_test.reshape(-1, 1, 28, 28))
  y = torch.from_numpy(work.y_test).long()
  with torch.no_grad():
    return batch_loss(model, x, y).item() / len(y)
