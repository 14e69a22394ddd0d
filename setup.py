"""Packages to install; see setup.cfg for everything else.

The folder binaries/ is installed as `safl_tf.binaries`.
"""

import setuptools

library = setuptools.find_packages(include=['safl_tf*'])
programs = setuptools.find_packages(include=['binaries*'])
setuptools.setup(packages=[*library, *(f'safl_tf.{name}' for name in programs)])
