"""safl-evaluate: see `binaries.evaluate_flags`."""

from absl import flags

from binaries import common, evaluate_flags


def main() -> None:
  """A model and a data set -> scores."""
  path = common.required('model')
  common.start_tensorflow()
  from binaries import building
  from safl_tf import evaluation
  from safl_tf.data import sources

  dataset = sources.load(flags.FLAGS.dataset, flags.FLAGS.data_dir)
  outputs, from_logits = building.load_outputs(path, dataset.x_test)
  scores = evaluation.score(
    outputs, dataset.y_test, flags.FLAGS.loss, from_logits
  )
  print(f'model    {path}')
  print(f'data     {dataset.name}, {len(dataset.y_test)} test examples')
  print(f'loss     {scores.loss:.4f}')
  print(f'top-1    {scores.accuracy:.2%}')
  print(f'top-5    {scores.top5_accuracy:.2%}')
  width = max(len('class'), *map(len, dataset.class_names))
  print(f'\n{"class":<{width}}  examples  accuracy')
  for name, count, accuracy in zip(
    dataset.class_names,
    scores.class_counts,
    scores.class_accuracy,
    strict=False,
  ):
    print(f'{name:<{width}}  {count:8d}  {accuracy:8.2%}')


def cli() -> None:
  """The console script."""
  common.run('safl-evaluate', evaluate_flags, main)


if __name__ == '__main__':
  cli()
