"""A process that is Flower's SuperNode, and ends with its parent."""

from flwr.supernode.cli.flower_supernode import flower_supernode

from safl_tf.deployment.flower import environment

if __name__ == '__main__':
  environment.begin('supernode')
  flower_supernode()
