// Shows the values of the point nearest to the pointer.
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
    const distance = p => Math.hypot(
      p.at.x * scale - (event.clientX - box.left),
      p.at.y * scale - (event.clientY - box.top));
    const visible = points.filter(p => !p.curve.classList.contains('off'));
    const nearest = visible.reduce(
      (a, b) => a && distance(a) <= distance(b) ? a : b, null);
    tip.hidden = !nearest || distance(nearest) > 40;
    if (tip.hidden) return;
    tip.textContent = nearest.text;
    const half = tip.offsetWidth / 2, x = nearest.at.x * scale;
    tip.style.left = Math.min(Math.max(x, half), box.width - half) + 'px';
    const above = box.top - figure.getBoundingClientRect().top;
    tip.style.top = above + nearest.at.y * scale + 'px';
  });
  svg.addEventListener('pointerleave', () => { tip.hidden = true; });
}
// A click on a name in a legend hides or shows its curves in all charts.
for (const item of document.querySelectorAll('.legend li[class]')) {
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
