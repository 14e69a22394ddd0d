"""The paper's experiments by name: what to run, and what to make of it.

`experiments` says what each is at each scale, `findings` compares what came out
with `paper_numbers.json`, and `report` writes it down.
"""
