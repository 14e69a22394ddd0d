"""The models in Keras, for the frameworks that train Keras models."""

from typing import Any


def build(keras: Any, dense: bool) -> Any:
  """Builds the workload's model, from pixels to logits.

  Args:
    keras: the module, as frameworks need different versions: Keras 3 or the
      `tf.keras` of an older TensorFlow.
    dense: whether to build the dense network, see `common.Work`; else LeNet-5.
  """
  layers = keras.layers
  lenet5 = [
    layers.Conv2D(6, 5, activation='tanh'),
    layers.AveragePooling2D(2),
    layers.Conv2D(16, 5, activation='tanh'),
    layers.AveragePooling2D(2),
    layers.Flatten(),
    layers.Dense(120, activation='tanh'),
    layers.Dense(84, activation='tanh'),
  ]
  hidden = [layers.Dense(200, activation='tanh') for _ in range(2)]
  return keras.Sequential(
    [
      layers.Input((28, 28, 1)),
      layers.Rescaling(1 / 255),
      *([layers.Flatten(), *hidden] if dense else lenet5),
      layers.Dense(10),
    ]
  )
