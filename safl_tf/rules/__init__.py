"""The four rules an algorithm is made of: select, mix, gate, aggregate.

Each is a closure made by a small factory: a pure function of its arguments,
with no files, no flags and no state of its own. `mix` and `gate` run inside a
client's compiled update, on tensors; `select` and `aggregate` run at the server, on
NumPy arrays.
"""
