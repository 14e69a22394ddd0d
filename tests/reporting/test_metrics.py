from safl_tf.reporting import metrics


def rows(**columns):
  """A history with these columns."""
  values = zip(*columns.values(), strict=True)
  return [
    {'round': t, **dict(zip(columns, row, strict=True))}
    for t, row in enumerate(values, start=1)
  ]


def test_main_metric():
  with_accuracy = rows(test_accuracy=[None, 0.5], test_loss=[None, 1.0])
  without = rows(test_accuracy=[None, None], test_loss=[2.0, 1.0])
  assert metrics.main([without]) == metrics.LOSS
  assert metrics.main([without, with_accuracy]) == metrics.ACCURACY
  assert metrics.main([]) == metrics.LOSS
  assert metrics.ACCURACY.best([0.1, 0.5, 0.3]) == 0.5
  assert metrics.LOSS.best([2.0, 1.0, 3.0]) == 1.0
  assert metrics.LOSS.best([]) is None


def test_names_to_display():
  assert metrics.ACCURACY.title == 'Test accuracy'
  assert metrics.ACCURACY.axis == 'test accuracy (%)'
  assert metrics.LOSS.axis == 'test loss'
  assert metrics.title('test_top5_accuracy') == 'Test top-5 accuracy'


def test_extra_metrics():
  history = rows(
    test_accuracy=[0.1],
    test_top5_accuracy=[0.2],
    test_loss=[1.0],
    test_auc=[0.5],
    test_mean_absolute_error=[2.0],
    test_empty=[None],
  )
  found = metrics.extra([[], history])
  assert [m.name for m in found] == ['auc', 'mean_absolute_error']


def test_metrics_of_clients():
  history = rows(
    client_own_accuracy_p50=[None, 0.5],
    client_own_accuracy_mean=[None, 0.5],
    client_global_accuracy_p50=[None, 0.4],
    client_global_mean_error_p50=[None, 0.4],
    client_personalized_accuracy_p50=[None, None],
  )
  assert metrics.of_clients(history) == {
    'accuracy': ['own', 'global'],
    'mean_error': ['global'],
  }
  assert metrics.of_clients([]) == {}
