"""safl-evaluate: see `binaries.evaluate_flags`."""

import os

from binaries import common, evaluate_flags

FLAGS = evaluate_flags.FLAGS


def main() -> None:
  """A model and a data set -> scores."""
  from safl_tf.training import metrics_log

  path = FLAGS.required('model')
  if not os.path.isdir(path):
    common.check_keras_file(path)
  trained = (metrics_log.read_hparams(path, 'model') or {}).get('flags', {})
  values = evaluate_flags.data_values(trained)
  loss = FLAGS.loss or trained.get('loss', 'categorical')
  common.start_tensorflow()
  from binaries import building
  from safl_tf.training import evaluation

  model = building.load_predictor(path)
  dataset = building.load_data(values, model.class_names)
  outputs, from_logits = building.predict(path, model, dataset)
  scores = evaluation.score(outputs, dataset.y_test, loss, from_logits)
  print(f'model    {path}')
  print(f'data     {dataset.name}, {len(dataset.y_test)} test examples')
  print(f'loss     {scores.loss:.6f}')
  print(f'top-1    {scores.accuracy:.2%}')
  print(f'top-5    {scores.top5_accuracy:.2%}')
  width = max(len('class'), *map(len, dataset.class_names))
  print(f'\n{"class":<{width}}  examples  accuracy')
  for name, count, accuracy in zip(
    dataset.class_names,
    scores.class_counts,
    scores.class_accuracy,
    strict=False,  # a model may have outputs that no class uses
  ):
    print(f'{name:<{width}}  {count:8d}  {accuracy:8.2%}')


def cli() -> None:
  """The console script."""
  common.run('safl-evaluate', evaluate_flags, main)


if __name__ == '__main__':
  cli()
