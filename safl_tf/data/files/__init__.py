"""Data sets from files: csv, npz and folders of images."""
