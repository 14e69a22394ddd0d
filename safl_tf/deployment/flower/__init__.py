"""Carries messages through Flower: the only package that imports it.

The server is a SuperLink and a ServerApp, a client is a SuperNode and a
ClientApp. Both apps run in processes that stay, Flower's isolation mode
'process': no process starts per message, and no code that Flower delivers runs.
"""
