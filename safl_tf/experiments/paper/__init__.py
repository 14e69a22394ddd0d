"""The paper's experiments by name, and reports that compare them with it.

`experiments` has the runs of each experiment at each scale, `results` reduces
finished runs to means over seeds, `tables`, `claims` and `figures` compare them
with `paper_numbers.json`, and `report` writes the files.
"""
