"""Command-line programs; installed as `safl_tf.binaries`."""
