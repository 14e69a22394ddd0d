"""Colours and dashes of all figures and pages, on light and dark paper.

Every algorithm has one colour, everywhere. Several curves of one algorithm are
tints of its colour with different dashes.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

# Light and dark colour of each algorithm.
_ALGORITHMS = {
  'safl': ('#0072B2', '#5AB0EE'),
  'fedavg': ('#D55E00', '#FF8F4F'),
  'extended_safl': ('#009E73', '#3AD0A2'),
  'fedsgd': ('#6B6B6B', '#B9B9B9'),
  'ida': ('#C0629B', '#EE9FCC'),
  'ida_safl': ('#8B2E6E', '#D874B8'),
  'astw': ('#D89000', '#F5C24A'),
  'astw_safl': ('#8A5A00', '#C99B3C'),
  'fedma': ('#6B4EAE', '#AE97EA'),
  'fedprox': ('#7A8B00', '#C3D24A'),
  'scaffold': ('#B3282D', '#F07C80'),
  'scaffold_safl': ('#7A1F1F', '#CC6060'),
  'feddyn': ('#2F8F9D', '#6CCBD8'),
  'centralized': ('#222222', '#F0F0F0'),
  'local_only': ('#8A8F98', '#8F98A4'),
}
# Of algorithms of users and of what has no algorithm, by position.
_OTHERS = (
  ('#4B5BD6', '#8F9BFF'),
  ('#A0522D', '#DB9A70'),
  ('#2E7D32', '#7CCB80'),
  ('#AD1457', '#F27AA9'),
  ('#00838F', '#4DD0E1'),
  ('#5D4037', '#BFA095'),
)
_NAMES = (*_ALGORITHMS, *(f'other{i}' for i in range(len(_OTHERS))))
_PAIRS = (*_ALGORITHMS.values(), *_OTHERS)
LIGHT, DARK = (
  dict(zip(_NAMES, c, strict=True)) for c in zip(*_PAIRS, strict=True)
)
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 2), (1, 1.5), (5, 1.5, 1, 1.5))

_MAX_TINT = 0.55
_INK = {False: '#222222', True: '#E8EAED'}
_PAPER = {False: '#FFFFFF', True: '#14171A'}
_SOFT = {False: '#5A626B', True: '#A3ABB4'}
_GRID = {False: '#E6E6E6', True: '#2E3338'}


class Look(NamedTuple):
  """How a curve is drawn.

  Attributes:
    color: key of `LIGHT` and `DARK`.
    tint: share of the paper's colour that is mixed in.
    dashes: lengths of strokes and gaps in line widths; empty if solid.
  """

  color: str
  tint: float = 0.0
  dashes: tuple[float, ...] = ()

  def hex(self) -> str:
    """Returns the colour in the figure that is being drawn."""
    from matplotlib import colors

    background = colors.to_rgb(paper())
    table = DARK if sum(background) < 1.5 else LIGHT
    color = colors.to_rgb(table[self.color])
    mixed = [
      (1 - self.tint) * c + self.tint * b
      for c, b in zip(color, background, strict=True)
    ]
    return colors.to_hex(mixed)


def look(algorithm: str | None) -> Look:
  """Returns the look of the only curve of an algorithm."""
  return looks([algorithm])[0]


def looks(algorithms: Sequence[str | None]) -> list[Look]:
  """Returns looks of curves with these algorithms, all different.

  Args:
    algorithms: name of each curve's algorithm, as a flag has it; None for a
      curve without one.
  """
  others = dict.fromkeys(
    i if a is None else a for i, a in enumerate(algorithms) if a not in LIGHT
  )
  found = []
  for i, name in enumerate(algorithms):
    if name in LIGHT:
      color = str(name)
    else:
      position = list(others).index(i if name is None else name)
      color = f'other{position % len(_OTHERS)}'
    found.append(color)
  several = []
  for i, color in enumerate(found):
    j, k = found[:i].count(color), found.count(color)
    tint = _MAX_TINT * j / (k - 1) if k > 1 else 0.0
    several.append(Look(color, tint, DASHES[j % len(DASHES)]))
  return several


def rc_params(dark: bool) -> dict[str, Any]:
  """Returns matplotlib's settings for figures on light or dark paper."""
  import matplotlib as mpl

  file = pathlib.Path(__file__).with_name('style.mplstyle')
  style = dict(mpl.rc_params_from_file(file, use_default_template=False))
  ink = {
    name: _INK[dark]
    for name in ('text.color', 'axes.titlecolor', 'axes.labelcolor')
  }
  soft = {name: _SOFT[dark] for name in ('xtick.color', 'ytick.color')}
  paper = {
    name: _PAPER[dark]
    for name in ('figure.facecolor', 'axes.facecolor', 'savefig.facecolor')
  }
  lines = {'axes.edgecolor': _SOFT[dark], 'grid.color': _GRID[dark]}
  return {**style, **ink, **soft, **paper, **lines}


def ramp() -> Any:
  """Returns a colour map from the paper to a strong blue."""
  from matplotlib import colors

  blue = look('safl').hex()
  return colors.LinearSegmentedColormap.from_list('ramp', [paper(), blue])


def ink_on(background: tuple[float, ...]) -> str:
  """Returns the colour of text that is legible on a colour."""
  red, green, blue = background[:3]
  is_dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
  return _INK[is_dark]


def ink() -> str:
  """Returns the colour of text in the figure that is being drawn."""
  return _setting('text.color')


def soft() -> str:
  """Returns the colour of text of less weight."""
  return _setting('xtick.color')


def paper() -> str:
  """Returns the colour of the background."""
  return _setting('figure.facecolor')


def _setting(name: str) -> str:
  import matplotlib as mpl

  return str(mpl.rcParams[name])
