"""How pages look, and the little that moves on them."""

import math

from safl_tf.reporting import plots

# On a dark page: the same hues as `plots.COLORS`, lighter.
_ON_DARK = (
  '#4FA3E8',
  '#FF8642',
  '#2CC79A',
  '#E79CCB',
  '#F0F0F0',
  '#A5DBFF',
  '#F5C24A',
)
_LINE = 2.0  # the width of a curve
LOOKS = math.lcm(len(plots.COLORS), len(plots.DASHES))

_RULES = """\
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif;
}
main { max-width: 84rem; margin: 0 auto; padding: 1rem 1.25rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
h1, p, dd { overflow-wrap: anywhere; }
p { max-width: 50rem; margin: 0.5rem 0; }
p.note { color: var(--soft); font-size: 0.85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.82rem; }
th, td {
  padding: 0.4rem 0.3rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); font-variant-numeric: tabular-nums;
}
thead th {
  color: var(--soft); font-weight: 600; vertical-align: bottom;
  white-space: normal; line-height: 1.3;
}
tbody th { font-weight: 600; }
th:first-child {
  text-align: left; position: sticky; left: 0; background: var(--page);
}
.charts {
  display: grid; gap: 2rem; margin-top: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr));
}
figure { margin: 0; position: relative; max-width: 44rem; }
figcaption { font-weight: 600; }
.x, .y { color: var(--soft); font-size: 0.85rem; }
.x { text-align: center; }
figure > svg { display: block; width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--soft); text-anchor: middle; }
svg text.left { text-anchor: end; }
.grid, .tick { stroke: var(--rule); }
.line { fill: none; stroke: var(--color); stroke-dasharray: var(--dashes); }
.line { stroke-width: var(--width); stroke-linejoin: round; }
.band { fill: var(--color); opacity: 0.18; }
.dot { fill: var(--color); }
.key { width: 36px; height: 10px; margin-right: 0.5em; }
.legend {
  display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; margin: 0.5rem 0 0;
  padding: 0; list-style: none; font-size: 0.85rem;
}
.legend li { white-space: nowrap; }
.legend li[role] { cursor: pointer; }
.legend li.off { opacity: 0.35; }
.curve.off { display: none; }
.tip {
  position: absolute; pointer-events: none; padding: 0.25rem 0.5rem;
  background: var(--ink); color: var(--page); border-radius: 4px;
  font-size: 0.8rem; white-space: nowrap; transform: translate(-50%, -130%);
}
details { margin-top: 2rem; }
summary { cursor: pointer; font-size: 1.15rem; font-weight: 600; }
dl { columns: 19rem; font-size: 0.9rem; margin: 0.75rem 0; }
dl div { display: flex; gap: 0.75rem; break-inside: avoid; }
dt { color: var(--soft); flex: 0 0 11rem; }
dd { margin: 0; }
@media (max-width: 36rem) {
  main { padding: 0.5rem 0.75rem 2rem; }
  h1 { font-size: 1.3rem; }
  svg text { font-size: 16px; }
  .line { stroke-width: calc(1.3 * var(--width)); }
}
@media print { .tip { display: none; } }
"""

# Shows the point nearest to the pointer; hides a curve when its name is chosen.
SCRIPT = """\
for (const figure of document.querySelectorAll('figure.chart')) {
  const svg = figure.querySelector('figure > svg');
  const tip = figure.querySelector('.tip');
  const numbers = text => text ? text.split(' ') : [];
  const points = [...svg.querySelectorAll('.curve')].flatMap(curve => {
    const [x, y, spread] =
      ['x', 'y', 'spread'].map(name => numbers(curve.dataset[name]));
    const name = curve.dataset[svg.dataset.key];
    return [...curve.querySelector('.line').points].map((at, i) => ({
      curve, at,
      text: `${name}: ${y[i]}${spread[i] ? ' ± ' + spread[i] : ''} at ${x[i]}`,
    }));
  });
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const away = p => Math.hypot(p.at.x * scale - (event.clientX - box.left),
                                 p.at.y * scale - (event.clientY - box.top));
    const shown = points.filter(p => !p.curve.classList.contains('off'));
    const near = shown.reduce((a, b) => a && away(a) <= away(b) ? a : b, null);
    tip.hidden = !near || away(near) > 40;
    if (tip.hidden) return;
    tip.textContent = near.text;
    const half = tip.offsetWidth / 2, x = near.at.x * scale;
    tip.style.left = Math.min(Math.max(x, half), box.width - half) + 'px';
    const above = box.top - figure.getBoundingClientRect().top;
    tip.style.top = above + near.at.y * scale + 'px';
  });
  svg.addEventListener('pointerleave', () => { tip.hidden = true; });
}
for (const item of document.querySelectorAll('.legend li')) {
  const same = '.' + item.classList[0];
  item.tabIndex = 0;
  item.setAttribute('role', 'button');
  item.setAttribute('aria-pressed', true);
  const toggle = () => {
    const off = !item.classList.contains('off');
    for (const other of document.querySelectorAll(
        `.curve${same}, .legend li${same}`)) {
      other.classList.toggle('off', off);
      if (other.matches('li')) other.setAttribute('aria-pressed', !off);
    }
  };
  item.addEventListener('click', toggle);
  item.addEventListener('keydown', event => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      toggle();
    }
  });
}
"""


def css() -> str:
  """The style sheet; colours and dashes of curves are those of `plots`."""
  light = _colors('#FFFFFF', '#1D2126', '#5A626B', '#DDE1E6', plots.COLORS)
  dark = _colors('#14171A', '#E8EAED', '#A3ABB4', '#33393F', _ON_DARK)
  looks = ''.join(_look(i) for i in range(LOOKS))
  return (
    f':root {{ color-scheme: light dark; --width: {_LINE}px; {light} }}\n'
    f'@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n'
    f'{_RULES}{looks}'
  )


def _colors(
  page: str, ink: str, soft: str, rule: str, curves: tuple[str, ...]
) -> str:
  named = {'page': page, 'ink': ink, 'soft': soft, 'rule': rule}
  named |= {f'c{i}': color for i, color in enumerate(curves)}
  return ' '.join(f'--{name}: {value};' for name, value in named.items())


def _look(i: int) -> str:
  """The i-th curve's colour and dashes."""
  lengths = plots.DASHES[i % len(plots.DASHES)]
  dashes = ' '.join(f'{_LINE * length:g}' for length in lengths) or 'none'
  color = f'var(--c{i % len(plots.COLORS)})'
  return f'.s{i} {{ --color: {color}; --dashes: {dashes}; }}\n'
