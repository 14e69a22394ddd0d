"""The rules of an algorithm: select, mix, client_work, gate, aggregate.

A factory returns each rule as a closure: a pure function of its arguments,
without files, flags or state. `mix`, `client_work` and `gate` run inside a
client's compiled round, on tensors; `select` and `aggregate` run on the server,
on NumPy arrays.
"""
