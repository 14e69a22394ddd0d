"""Predicts the next character: one client per topic of Python's documentation.

python -m examples.next_character
"""

import numpy as np

import safl_tf
from safl_tf.data import registry


def main(rounds: int = 8, num_topics: int = 12) -> str:
  """Trains a GRU on the longest topics and continues a text with it."""
  data = registry.load('python_docs')
  names, counts = np.unique(data.client_ids, return_counts=True)
  topics = names[np.argsort(-counts)[:num_topics]]
  rows = np.isin(data.client_ids, topics)
  clients = safl_tf.ClientData.from_arrays(
    data.x_train[rows],
    data.y_train[rows],
    partition=safl_tf.partition.by_client(data.client_ids[rows]),
  )
  result = safl_tf.train(
    lambda: safl_tf.char_gru((40,), data.num_outputs),
    clients,
    algorithm=safl_tf.build_safl(temperature=10),
    test_data=(data.x_test, data.y_test),
    rounds=rounds,
    config=safl_tf.LocalConfig(
      local_epochs=2,
      optimizer='adam',
      learning_rate=0.005,
      loss_reduction='mean',
    ),
    jit_compile='true',
    eval_every=rounds,
  )
  accuracy = result.history[-1]['test_accuracy']
  print(f'next character right: {accuracy:.1%}')
  text = continue_text(result.model, data.class_names, 'The following ')
  print(repr(text))
  return text


def continue_text(model, characters, text: str, length: int = 60) -> str:
  """Appends the most probable characters one by one."""
  ids = {character: i for i, character in enumerate(characters)}
  for _ in range(length):
    window = np.array([[ids.get(c, 0) for c in text[-40:]]], np.int32)
    padded = np.pad(window, [(0, 0), (0, 40 - window.shape[1])])
    outputs = np.asarray(model(padded))[0, window.shape[1] - 1]
    text += characters[int(outputs.argmax())]
  return text


if __name__ == '__main__':
  main()
