"""The gate (24), (25) with a biased z̄."""

import numpy as np
import pytest

from examples import biased_clients


@pytest.mark.slow
def test_clients_with_one_digit_upload_and_others_withhold():
  """A z̄ that only predicts 2 is perfect for clients that only hold 2."""
  first, *later = biased_clients.uploads(
    rounds=4, num_clients=8, mean_examples=100
  )
  np.testing.assert_array_equal(first[0], 1)  # no z̄ yet
  for q, sent, one_digit in later:
    assert one_digit.sum() == 4
    np.testing.assert_array_equal(q[one_digit], 1)
    assert sent[one_digit].all()
    assert (q[~one_digit] < 0.6).all()
