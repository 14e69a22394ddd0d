"""The examples of other tasks than classification, at a small scale."""

import pytest

from examples import multi_label, next_character, regression


def test_regression(capsys):
  scores = regression.main(rounds=3)
  assert scores.metrics == ['loss', 'mae', 'r2_score']
  assert len(scores.rows) == 8
  assert 'personalized' in capsys.readouterr().out


def test_multi_label():
  result = multi_label.main(rounds=3)
  last = result.history[-1]
  assert 0.5 < last['test_AUC'] < 1 and 0 < last['test_f1_score'] < 1
  assert last['delta_p50'] is not None or last['uploaded'] == 10


@pytest.mark.slow
def test_next_character():
  text = next_character.main(rounds=1, num_topics=2)
  assert text.startswith('The following ') and len(text) == 74
