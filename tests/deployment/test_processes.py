"""Real clients as programs, through Flower's own processes.

They take minutes: `make test-deploy` runs them.
"""

import pytest

from tests.deployment import processes

pytestmark = pytest.mark.slow
FLAGS = ['--algorithm=extended_safl', '--local_epochs=1']
LOOPBACK = {'127.0.0.1', '::1', 'localhost', 'None', "b'127.0.0.1'"}


@pytest.fixture
def deployment(tmp_path):
  deployment = processes.Deployment(tmp_path)
  yield deployment
  deployment.close()


def after_round(deployment, t):
  deployment.wait_for('server', rf'round {t} of')


def test_kills_do_not_change_a_bit(deployment):
  """Each process is killed in mid-round; the run is that of the simulation."""
  deployment.simulate([*FLAGS, '--rounds=8'])
  deployment.start()
  after_round(deployment, 1)
  deployment.part(0, 'supernode').kill()
  after_round(deployment, 2)
  deployment.part(1, 'client_worker').kill()
  # A reply is lost: the client has stored its model.
  deployment.wait_for('client_0', 'round 4: ')
  deployment.part(0, 'supernode').kill()
  after_round(deployment, 4)
  deployment.kill_client(0)
  deployment.start_client(0)
  after_round(deployment, 5)
  deployment.superlink().kill()
  deployment.wait_for('client_1', 'round 7: ')
  deployment.kill_server()
  deployment.start_server()
  deployment.finish()
  deployment.check_equal()
  assert deployment.text('server').count('round 8 of') == 1
  for text in ('SuperNode ended', 'trainer ended'):
    assert text in deployment.text('client_0') + deployment.text('client_1')
  assert deployment.hosts() <= LOOPBACK
