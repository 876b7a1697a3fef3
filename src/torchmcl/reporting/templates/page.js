// Sorts tables, and shows what a number means when it is pointed at, focused or touched. Nothing is loaded.
document.addEventListener('click', event => {
  const sort = event.target.closest('[data-sort]'), order = event.target.closest('[data-order]');
  if (sort) sorted(sort.closest('th'));
  if (order) ordered(order.closest('tr'));
});

// Orders the columns of the metrics table by one row; the next click reverses the order.
function ordered(row) {
  const up = row.dataset.sorted !== 'ascending', order = compare(up);
  const columns = [...Array(row.cells.length).keys()].slice(1).sort((a, b) => order(row.cells[a], row.cells[b]));
  for (const other of row.closest('table').rows) {
    const cells = [...other.cells];
    other.append(...columns.map(i => cells[i]));
    delete other.dataset.sorted;
  }
  row.dataset.sorted = up ? 'ascending' : 'descending';
}

const tip = document.body.appendChild(document.createElement('div'));
tip.className = 'tip';
tip.setAttribute('role', 'tooltip');
tip.id = 'tip';
tip.hidden = true;

function explain(event) {
  const place = event.target.closest?.('[data-tip] td, [data-tip] th, [data-tip]');
  const source = place?.closest('[data-tip]');
  hide();
  if (!source) return;
  const {tip: meaning, name, better} = source.dataset, bold = document.createElement('b');
  if (name !== undefined && place.tagName === 'TD') {
    const run = place.closest('table').tHead?.rows[0].cells[place.cellIndex].textContent;
    bold.textContent = `${name}${run ? `, ${run}` : ''}: ${place.textContent.trim()}`;
  } else {
    bold.textContent = name ?? '';
  }
  tip.replaceChildren(bold, ` ${meaning}${better ? ` ${better[0].toUpperCase()}${better.slice(1)} is better.` : ''}`);
  tip.hidden = false;
  const {left, bottom, top} = place.getBoundingClientRect(), {offsetWidth: width, offsetHeight: height} = tip;
  tip.style.left = `${Math.max(8, Math.min(left, document.documentElement.clientWidth - width - 8))}px`;
  tip.style.top = `${bottom + height + 12 < innerHeight ? bottom + 6 : Math.max(4, top - height - 6)}px`;
  const focusable = place.querySelector('button') ?? place;
  focusable.setAttribute('aria-describedby', 'tip');
}

function hide() {
  tip.hidden = true;
  document.querySelector('[aria-describedby=tip]')?.removeAttribute('aria-describedby');
}

for (const kind of ['pointerover', 'focusin', 'click']) document.addEventListener(kind, explain);
document.addEventListener('keydown', event => { if (event.key === 'Escape') hide(); });
for (const kind of ['wheel', 'touchmove']) document.addEventListener(kind, hide, {passive: true});
