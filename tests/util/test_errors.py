from safl_tf.util import errors


def test_reason_is_the_line_that_states_the_cause():
  error = ValueError(
    'Exception encountered when calling layer.\n\n\x1b[1mbad shape\x1b[0m\nmore'
  )
  assert errors.reason(error) == 'bad shape'
  assert errors.reason(KeyError()) == 'KeyError'


def test_reason_is_cut_between_words():
  words = ' '.join(f'word{i}' for i in range(200))
  shown = errors.reason(ValueError(words))
  assert shown.endswith(' …') and 350 < len(shown) <= 402
  assert words.startswith(shown.removesuffix(' …') + ' ')
  assert errors.reason(ValueError('x' * 900)) == 'x' * 400 + ' …'
  assert errors.reason(ValueError('y' * 300)) == 'y' * 300
