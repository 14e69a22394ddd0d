"""Regression on a pandas DataFrame, with tests on each client's own examples.

python -m examples.regression
"""

import keras
import pandas as pd
from sklearn import datasets

import safl_tf


def load() -> tuple[pd.DataFrame, pd.Series, pd.Series]:
  """Returns standardised features, targets and the group of each patient."""
  frame = datasets.load_diabetes(as_frame=True, scaled=False).frame
  sex = frame['sex'].map({1.0: 'sex 1', 2.0: 'sex 2'})
  age = pd.cut(
    frame['age'], [0, 40, 50, 60, 100], labels=['-40', '-50', '-60', '60+']
  )
  group = sex + ', age ' + age.astype(str)
  frame = (frame - frame.mean()) / frame.std()
  return frame.drop(columns='target'), frame['target'], group


def make_model() -> keras.Model:
  """Builds a Keras model; what it is compiled with is what clients minimise."""
  model = keras.Sequential(
    [
      keras.Input((10,)),
      keras.layers.Dense(32, activation='relu'),
      keras.layers.Dense(1),
    ]
  )
  model.compile(loss='mse', metrics=['mae', 'r2_score'])
  return model


def main(rounds: int = 40) -> safl_tf.ClientScores:
  """Trains on groups of patients and prints how each kind of model does."""
  x, y, group = load()
  clients = safl_tf.ClientData.from_arrays(
    x, y, partition=safl_tf.partition.by_client(group)
  )
  train_clients, test_clients = clients.split(test_fraction=0.3, seed=0)
  result = safl_tf.train(
    make_model,
    train_clients,
    algorithm=safl_tf.build_safl(epsilon=0.3, temperature=20),
    test_clients=test_clients,
    eval_clients_every=10,
    personalize_steps=10,
    rounds=rounds,
  )
  scores = result.client_scores
  assert scores is not None
  columns = ['mean', 'weighted_mean', 'std', 'worst_decile']
  print(scores.summary[columns].round(3).to_string())
  return scores


if __name__ == '__main__':
  main()
